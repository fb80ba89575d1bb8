"""The sentry: notices that another node's process has died before its lease expires.

An expired lease only shows that a node was silent for too long, which is all one can know about a
node behind a broken network or one that is paused. The death of a process shows sooner: the kernel
closes its connections at once and refuses new ones. So each broker keeps an idle connection to
every other node. When one breaks and the node *refuses* a new one, the broker ends that node's
lease, and takeover begins within milliseconds instead of seconds.

The sentry is not a probe (`wire/probe.py`): it sends nothing, so it also watches nodes that are
slow or refuse logins.

Safe, because a lease is only a hint: a node whose lease was ended by mistake registers again, and
terms protect what it owned. Bounded, because a broker reports each life of a node at most once, and
only after it was connected to it. So a wrong address, or a firewall that refuses every connection,
does not end a node's lease again and again.
"""

import asyncio
from functools import partial

from dovetail.background import keep_task
from dovetail.coordination import Coordinator, LeaseId
from dovetail.coordination.membership import Member, Membership
from dovetail.errors import DovetailError
from dovetail.logging import get_logger

_log = get_logger("sentry")

#: Pause before a connection that broke is made anew, and between attempts.
RETRY_MS = 100
#: No answer at all in this time is no sign of death: the lease decides.
CONNECT_MS = 1000


class Sentry:
    """Watches all other nodes; between `start` and `stop`."""

    def __init__(self, membership: Membership, coordinator: Coordinator, *, node_id: int) -> None:
        self._membership = membership
        self._coordinator = coordinator
        self._node_id = node_id
        #: By number and life; a node that starts again is another one here.
        self._watches: dict[tuple[int, str], asyncio.Task[None]] = {}

    def start(self) -> None:
        self._membership.on_change.append(self._look_again)
        self._look_again()

    async def stop(self) -> None:
        self._membership.on_change.remove(self._look_again)
        for watch in self._watches.values():
            watch.cancel()
        await asyncio.gather(*self._watches.values(), return_exceptions=True)

    def _look_again(self) -> None:
        lives = {
            (member.node_id, member.incarnation): member
            for member in self._membership.members().values()
            if member.node_id != self._node_id
        }
        for life in [life for life in self._watches if life not in lives]:
            self._watches.pop(life).cancel()
        for life, member in lives.items():
            if life not in self._watches:
                self._watches[life] = keep_task(
                    partial(self._watch, member), name="node/sentry", of=f"node {member.node_id}"
                )

    async def _watch(self, member: Member) -> None:
        """Holds a connection to the node; returns when its process is gone."""
        met = False
        while True:
            try:
                async with asyncio.timeout(CONNECT_MS / 1000):
                    reader, writer = await asyncio.open_connection(member.host, member.port)
            except ConnectionRefusedError:
                if met:
                    break
            except (OSError, TimeoutError):
                pass
            else:
                met = True
                connected_s = asyncio.get_running_loop().time()
                try:
                    await reader.read()
                except OSError:
                    pass
                finally:
                    writer.close()

                if asyncio.get_running_loop().time() - connected_s > CONNECT_MS / 1000:
                    continue  # A long one broke: is there still somebody?
            await asyncio.sleep(RETRY_MS / 1000)

        now = self._membership.members().get(member.node_id)
        if now is None or now.incarnation != member.incarnation:
            return
        _log.warning("a node's process has died; ending its lease", node=member.node_id)
        try:
            await self._coordinator.revoke(LeaseId(now.lease))
        except DovetailError as error:
            _log.warning(
                "cannot end the lease of a dead node; it expires by itself",
                node=member.node_id,
                error=str(error),
            )
