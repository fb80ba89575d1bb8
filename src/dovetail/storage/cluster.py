"""The storage nodes of a cluster: finds them by number, chooses them by strategy (L12).

A node is reached at the address that it registered last. Connections are made on first use, and
again when a node returns at another address. A node that is down remains known: reads and recovery
still ask it, and these calls fail.
"""

import random
import ssl
from collections.abc import Collection, Mapping, Sequence

from dovetail.addresses import Address
from dovetail.background import Tasks
from dovetail.coordination.membership import STORAGE_ROLE, Membership
from dovetail.errors import Unavailable
from dovetail.logging import get_logger
from dovetail.storage import StorageNode
from dovetail.storage.identity import Disks
from dovetail.storage.remote import RemoteStorageNode
from dovetail.storage.selection import Candidate, Selection, spread
from dovetail.wire.login import ClientLogin
from dovetail.wire.peer import PeerSettings

_log = get_logger("storage")

#: A storage process that has not listened for so long is given up for now: its ledgers go on with
#: the others, and it gets what is being written when it is back.
_REFUSED_MS = 300

#: Loads are compared in steps of this size, so that nodes that hold about the same share new data.
_LOAD_STEP_BYTES = 64 * 1024 * 1024


class ClusterNodes:
    """`Nodes` of a cluster, seen from one of its nodes."""

    def __init__(
        self,
        membership: Membership,
        disks: Disks,
        *,
        client_id: str,
        local: tuple[int, StorageNode] | None,
        select: Selection,
        rack: str = "",
        rng: random.Random,
        bytes_in_flight_max: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`bytes_in_flight_max` is for one storage node; no less than a listener lets in."""
        self._membership = membership
        self._disks = disks
        self._client_id = client_id
        self._local = local
        self._select = select
        self._rack = rack
        #: Where each node stood when it was last seen.
        self._racks: dict[int, str] = {}
        #: The racks that were there when an ensemble was last narrower than it could be.
        self._narrow: frozenset[str] | None = None
        self._rng = rng
        self._peer_settings = PeerSettings(
            refused_ms_max=_REFUSED_MS,
            bytes_in_flight_max=bytes_in_flight_max,
            login=ClientLogin(tls),
        )
        self._turn = rng.randrange(1 << 32)
        self._remote: dict[int, tuple[Address, RemoteStorageNode]] = {}
        self._closing = Tasks()

    def node(self, number: int) -> StorageNode:
        if self._local is not None and number == self._local[0]:
            return self._local[1]
        member = self._membership.members().get(number)
        known = self._remote.get(number)
        if member is None or STORAGE_ROLE not in member.roles:
            if known is None:
                raise Unavailable(f"storage node {number} is not registered")
            return known[1]

        identity = self._disks.identity(number)
        if identity is None:
            raise Unavailable(f"the disk of storage node {number} is not known yet")

        address = Address(member.host, member.port)
        if known is not None and known[0] != address:
            self._closing.start(known[1].close(), name="storage/leave", of=known[1].address)
            known = None

        if known is None:
            known = (
                address,
                # Whoever else listens there one day must not answer in its name: an empty disk
                # would deny what this one acknowledged.
                RemoteStorageNode(
                    *address,
                    client_id=self._client_id,
                    identity=identity,
                    settings=self._peer_settings,
                    rng=self._rng,
                ),
            )
            self._remote[number] = known
        return known[1]

    def near(self, number: int) -> bool:
        """Whether a node stands in this node's rack."""
        return bool(self._rack) and self._racks_seen().get(number) == self._rack

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        """The first that the strategy names, of those that take new data, spread over racks."""
        candidates = [
            Candidate(number, member.stored_bytes // _LOAD_STEP_BYTES)
            for number, member in self._membership.storage().items()
            if not member.leaving and number not in without and (among is None or number in among)
        ]
        if len(candidates) < count:
            raise Unavailable(
                f"{count} storage nodes are needed, {len(candidates)} are available; start more, "
                "or lower the topic's ensemble"
            )
        self._turn += 1
        order, racks = self._select(candidates, self._turn), self._racks_seen()
        chosen = spread(order, count, racks=racks, beside=beside)
        self._tell_if_narrow((*chosen, *beside), racks)
        return chosen

    def _racks_seen(self) -> dict[int, str]:
        self._racks |= {n: member.rack for n, member in self._membership.storage().items()}
        return self._racks

    def _tell_if_narrow(self, ensemble: Sequence[int], racks: Mapping[int, str]) -> None:
        """Says once that copies share a rack while others are away."""
        known = frozenset(racks[n] for n in self._disks.numbers() if n in racks)
        used = frozenset(racks.get(n, "") for n in ensemble)
        narrow = used if len(used) < min(len(ensemble), len(known)) else None
        if narrow is not None and narrow != self._narrow:
            _log.warning(
                "copies share a rack until others are back",
                racks=sorted(used),
                missing=sorted(known - used),
            )
        self._narrow = narrow

    def away(self) -> tuple[int, ...]:
        """Those that joined once, and now do not hold their lease or took themselves out."""
        there = self._membership.storage()
        return tuple(sorted(number for number in self._disks.numbers() if number not in there))

    async def close(self) -> None:
        """Ends all connections."""
        for _, remote in self._remote.values():
            await remote.close()
        await self._closing.finish()
