"""The sentry: notices that another node's process is gone before its lease ends.

A lease says "not heard of for so long", which is all that can be known of a node behind a dead
network or one that stands still. The death of a process shows sooner: the system closes its
connections at once, and refuses new ones. So each broker keeps an idle connection to every other
node, and when one breaks and a new one is *refused*, it ends that node's lease. Takeover begins
within milliseconds then, instead of seconds.

This is no probe (`wire/probe.py`): nothing is sent, so a node that is slow or refuses logins is
watched like any other.

Safe, because a lease is a hint: a node whose lease was ended wrongly registers anew, and what it
owned is protected by terms. Bounded, because each life of a node is reported once at most, and only
by somebody who was connected to it before: an address that was wrong from the start, or a firewall
that refuses everybody, ends nobody's lease again and again.
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
        _log.warning("a node's process is gone; ending its lease", node=member.node_id)
        try:
            await self._coordinator.revoke(LeaseId(now.lease))
        except DovetailError as error:
            _log.warning("its lease ends by itself", node=member.node_id, error=str(error))
