"""Quotas: how much a user or a client may demand of one broker.

    /quotas/<digest>    an entity and its quotas, under a digest of the entity

Promise: a client that exceeds its quota is told so (`throttle_time_ms`), and its next request does
not start before that time is over; nothing is refused. In the long run it gets its quota, plus a
burst of one second.

The quota that applies is chosen as in Kafka: that of the user with the client id, of the user, of
the client id, each before the default of its kind (`_PRECEDENCE`). Clients to which a user's quota
applies share it; so do all connections of a client id.

Each broker counts for itself, as Kafka's do. Counters are lost when it stops.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from dovetail.coordination import ABSENT, Coordinator, Delete, Put, Revision, Unchanged
from dovetail.coordination.mirror import Mirror
from dovetail.errors import InvalidInput, Unavailable

QUOTAS = "/quotas/"

USER = "user"
CLIENT = "client-id"

PRODUCED = "producer_byte_rate"
FETCHED = "consumer_byte_rate"
#: Percent of one processor's time that the broker spends on beginning requests.
BUSY = "request_percentage"
#: Partitions created or deleted a second.
MUTATED = "controller_mutation_rate"
_KEYS = (PRODUCED, FETCHED, BUSY, MUTATED)
_WHOLE = (PRODUCED, FETCHED)

#: What may be asked for at once before anybody waits.
_BURST_MS = 1000

#: Longest wait that is told at once: clients give up a request after 30 s. Who owes more waits
#: again after its next request.
WAIT_MS_MAX = 10_000

#: Meters that are kept; a client id is free text, so strangers could make any number.
_METERS_MAX = 10_000

_NAME_MAX = 1000
_ATTEMPTS_MAX = 10

#: A kind of entity with a name, or None for the default of that kind.
Entity = frozenset[tuple[str, str | None]]

#: In order: whether the user and the client id are named (True), the default (False) or not part.
_PRECEDENCE: tuple[tuple[bool | None, bool | None], ...] = (
    (True, True),
    (True, False),
    (True, None),
    (False, True),
    (False, False),
    (False, None),
    (None, True),
    (None, False),
)


class _Kept(msgspec.Struct, frozen=True):
    entity: dict[str, str | None]
    values: dict[str, float]


@dataclass(slots=True)
class Meter:
    """What was asked for and is not worked off yet; it falls at the rate of the quota."""

    level: float = 0.0
    at_ms: float = 0.0

    def note(self, amount: float, rate: float, now_ms: float) -> None:
        """Adds to it; `rate` is a second's."""
        fallen = max(now_ms - self.at_ms, 0.0) * rate / 1000
        self.level = max(self.level - fallen, 0.0) + amount
        self.at_ms = now_ms

    def wait_ms(self, rate: float, now_ms: float) -> int:
        """How long until it is within the burst again."""
        self.note(0, rate, now_ms)
        over = self.level - rate * _BURST_MS / 1000
        return math.ceil(min(over / rate * 1000, WAIT_MS_MAX)) if over > 0 else 0


class Quotas:
    """The quotas of all entities, and what each client has used of them here."""

    def __init__(self, coordinator: Coordinator, now_ms: Callable[[], float]) -> None:
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._kept: dict[str, _Kept] = {}
        self._values: dict[Entity, Mapping[str, float]] = {}
        self._meters: OrderedDict[tuple[str, str | None, str | None], Meter] = OrderedDict()
        self._mirror = Mirror(coordinator, QUOTAS, apply=self._apply, settled=self._settled)
        #: Whether there is any quota at all; if not, nothing is counted.
        self.active = False

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    # What clients use

    def note(self, key: str, user: str, client: str, amount: float) -> None:
        """Counts what a client has used."""
        found = self._find(key, user, client)
        if found is not None:
            meter, rate = found
            meter.note(amount, rate, self._now_ms())

    def wait_ms(self, user: str, client: str) -> int:
        """How long the client has to wait before its next request."""
        now_ms = self._now_ms()
        found = [self._find(key, user, client) for key in _KEYS]
        return max(each[0].wait_ms(each[1], now_ms) if each else 0 for each in found)

    def _find(self, key: str, user: str, client: str) -> tuple[Meter, float] | None:
        """The meter that counts for this client, and what its quota allows a second."""
        for by_user, by_client in _PRECEDENCE:
            entity = _entity(by_user, user, by_client, client)
            value = self._values.get(entity, {}).get(key)
            if value is None:
                continue
            shared = (key, None if by_user is None else user, None if by_client is None else client)
            meter = self._meters.get(shared)
            if meter is None:
                meter = self._meters[shared] = Meter(at_ms=self._now_ms())
                if len(self._meters) > _METERS_MAX:
                    self._meters.popitem(last=False)
            self._meters.move_to_end(shared)
            return meter, value * 10 if key == BUSY else value
        return None

    # Reading and changing

    def all(self) -> Mapping[Entity, Mapping[str, float]]:
        """Every entity that has quotas."""
        return self._values

    async def change(
        self, entity: Entity, changes: Mapping[str, float | None], *, check_only: bool = False
    ) -> None:
        """Sets quotas, or removes those of None. Raises `InvalidInput`, `Unavailable`."""
        check_entity(entity)
        for name, value in changes.items():
            _check_value(name, value)
        if check_only:
            return

        key = _key_of(entity)
        for _ in range(_ATTEMPTS_MAX):
            found = await self._coordinator.get(key)
            values = {} if found is None else msgspec.json.decode(found.value, type=_Kept).values
            values = {**values, **{n: v for n, v in changes.items() if v is not None}}
            values = {n: v for n, v in values.items() if changes.get(n, v) is not None}
            kept = msgspec.json.encode(_Kept(dict(sorted(entity)), values))
            step = Put(key, kept) if values else Delete(key)
            outcome = await self._coordinator.transact(
                [step], conditions=[Unchanged(key, ABSENT if found is None else found.revision)]
            )
            if outcome.applied:
                self._mirror.note(key, kept if values else None, outcome.revision)
                self._settled()
                return
        raise Unavailable("other clients keep changing this quota; try again")

    def _apply(self, key: str, value: bytes | None, _: Revision) -> None:
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = msgspec.json.decode(value, type=_Kept)

    def _settled(self) -> None:
        self._values = {frozenset(k.entity.items()): k.values for k in self._kept.values()}
        self.active = bool(self._values)


def check_entity(entity: Entity) -> None:
    """Raises `InvalidInput` if there is no such kind of thing, or its name does not fit."""
    if not entity:
        raise InvalidInput("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (USER, CLIENT):
            raise InvalidInput(
                f"quotas are for {USER} and {CLIENT}, not for {kind[:80]!r}; connections are "
                "limited by kafka.connections_max"
            )
        if name is not None and not 0 < len(name) <= _NAME_MAX:
            raise InvalidInput(f"the name of a {kind} has 1 to {_NAME_MAX} characters")


def _check_value(name: str, value: float | None) -> None:
    if name not in _KEYS:
        raise InvalidInput(f"unknown quota {name[:80]!r}; known are {', '.join(_KEYS)}")
    if value is None:
        return
    if not 0 < value < math.inf:
        raise InvalidInput(f"Quota {name} must be greater than 0, not {value}")
    if name in _WHOLE and value != int(value):
        raise InvalidInput(f"Quota {name} must be a whole number of bytes, not {value}")


def _entity(by_user: bool | None, user: str, by_client: bool | None, client: str) -> Entity:
    parts = []
    if by_user is not None:
        parts.append((USER, user if by_user else None))
    if by_client is not None:
        parts.append((CLIENT, client if by_client else None))
    return frozenset(parts)


def _key_of(entity: Entity) -> str:
    named = msgspec.json.encode(sorted((kind, name or "", name is None) for kind, name in entity))
    return f"{QUOTAS}{hashlib.sha256(named).hexdigest()[:32]}"
