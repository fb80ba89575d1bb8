"""Which timelines exist: entries of the coordination service, and their states.

    create:   (nothing) ── entry `creating` ── storage provisioned ── entry `ready`
    delete:   entry ── one transaction ──▶ entry in the deleted list ── storage dropped ── (nothing)

A timeline is used only while it is `ready`. The deleted list keeps the name: it is refused until
the storage is gone, and free right after. A broker that dies in between leaves an entry that
another one finishes: `finish` does so for every entry of which it becomes the master, under a key
bound to the master's lease. Both steps can be repeated, so two masters do no harm.

    /timelines/names/<name>      id, state, settings
    /timelines/deleted/<name>    id
    /timelines/masters/<name>    which broker finishes it (with a lease)
    /timelines/last              the last id that was issued; a name that is used again gets a new
                                 one
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from dovetail.coordination import ABSENT, Coordinator, Delete, KeyValue, Put, Unchanged
from dovetail.coordination.membership import LeaseSource
from dovetail.errors import (
    Damaged,
    DovetailError,
    InvalidSetting,
    TopicExists,
    TopicUnknown,
    Unavailable,
)
from dovetail.logging import get_logger
from dovetail.timeline.config import TimelineConfig, altered, check_name
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores.protocol import Stores

_log = get_logger("timeline")

PREFIX: Final = "/timelines/"
_NAMES: Final = f"{PREFIX}names/"
_DELETED: Final = f"{PREFIX}deleted/"
_MASTERS: Final = f"{PREFIX}masters/"
_LAST: Final = f"{PREFIX}last"
#: Attempts of a change that collides with others; each time one of those has made progress.
_ATTEMPTS_MAX: Final = 50

TimelineState = Literal["creating", "ready", "deleting"]


class _Entry(Struct, frozen=True):
    id: int
    state: Literal["creating", "ready"]
    config: TimelineConfig


class _Deleted(Struct, frozen=True):
    id: int


@dataclass(frozen=True, slots=True)
class TimelineRecord:
    """A timeline as the coordination service knows it."""

    name: str
    id: TimelineId
    state: TimelineState
    config: TimelineConfig


class _Label(Struct, frozen=True):
    """What a timeline is, as its storage keeps it."""

    name: str
    config: TimelineConfig


_encode = msgspec.json.Encoder().encode
Read = TypeVar("Read")


def _label(name: str, config: TimelineConfig) -> bytes:
    return _encode(_Label(name, config))


def _label_read(number: TimelineId, label: bytes) -> _Label:
    """What the label says; a name made of the number where it cannot be read."""
    try:
        return msgspec.json.decode(label, type=_Label)
    except msgspec.DecodeError:
        return _Label(f"adopted-{number}", TimelineConfig())


class Catalog:
    """The timelines of a cluster."""

    def __init__(
        self,
        coordinator: Coordinator,
        stores: Stores,
        *,
        node: str,
        leases: LeaseSource | None,
    ) -> None:
        """This node's masterships are bound to the lease; None where there is one node for ever."""
        self._coordinator = coordinator
        self._stores = stores
        self._node = node
        self._leases = leases
        self._revision = ABSENT

    async def records(self) -> dict[str, TimelineRecord]:
        """All timelines by name, those that are being deleted among them."""
        snapshot = await self._coordinator.range(PREFIX)
        self._revision = snapshot.revision
        found: dict[str, TimelineRecord] = {}
        for item in snapshot.items:
            if item.key.startswith(_NAMES):
                name = item.key.removeprefix(_NAMES)
                entry = _read(item, _Entry)
                found[name] = TimelineRecord(name, TimelineId(entry.id), entry.state, entry.config)
            elif item.key.startswith(_DELETED):
                name = item.key.removeprefix(_DELETED)
                number = TimelineId(_read(item, _Deleted).id)
                found[name] = TimelineRecord(name, number, "deleting", TimelineConfig())
        return found

    async def last_given(self) -> int:
        """The highest id that a timeline was given; 0 if there never was one."""
        last = await self._coordinator.get(_LAST)
        return 0 if last is None else int(last.value)

    async def is_ready(self, name: str) -> bool:
        """Whether there is such a timeline, as the coordination service knows it now."""
        item = await self._coordinator.get(_NAMES + name)
        return item is not None and _read(item, _Entry).state == "ready"

    async def create(self, name: str, config: TimelineConfig) -> TimelineRecord:
        """Makes a timeline; it is ready when this returns. Raises `TopicExists`."""
        check_name(name)
        for _ in range(_ATTEMPTS_MAX):
            if await self._coordinator.get(_NAMES + name) is not None:
                raise TopicExists(f"timeline {name!r} exists")
            if await self._coordinator.get(_DELETED + name) is not None:
                raise TopicExists(
                    f"timeline {name!r} is still being deleted; try again in a moment"
                )

            last = await self._coordinator.get(_LAST)
            number = 1 if last is None else int(last.value) + 1
            entry = _encode(_Entry(number, "creating", config))
            outcome = await self._coordinator.transact(
                [Put(_NAMES + name, entry), Put(_LAST, str(number).encode())],
                conditions=[
                    Unchanged(_NAMES + name, ABSENT),
                    Unchanged(_DELETED + name, ABSENT),
                    Unchanged(_LAST, ABSENT if last is None else last.revision),
                ],
            )

            if outcome.applied:
                await self._complete(name)
                return TimelineRecord(name, TimelineId(number), "ready", config)
        raise Unavailable(f"timeline {name!r} was not created: too many changes at once; try again")

    async def alter(self, name: str, settings: Mapping[str, str | int | bool]) -> TimelineRecord:
        """Changes settings of a timeline, in one step. Raises `InvalidInput`, `TopicUnknown`."""
        for _ in range(_ATTEMPTS_MAX):
            item = await self._coordinator.get(_NAMES + name)
            if item is None or (entry := _read(item, _Entry)).state != "ready":
                raise TopicUnknown(f"no timeline {name!r}")
            config = altered(entry.config, settings)
            outcome = await self._coordinator.transact(
                [Put(_NAMES + name, _encode(_Entry(entry.id, entry.state, config)))],
                conditions=[Unchanged(_NAMES + name, item.revision)],
            )
            if outcome.applied:
                if self._stores.news is not None:
                    await self._stores.provision(TimelineId(entry.id), _label(name, config))
                return TimelineRecord(name, TimelineId(entry.id), "ready", config)
        raise Unavailable(f"timeline {name!r} was not altered: too many changes at once; try again")

    async def delete(self, name: str) -> TimelineRecord:
        """Takes a timeline away from everybody, in one step; `finish` removes its storage.

        Raises `TopicUnknown`.
        """
        for _ in range(_ATTEMPTS_MAX):
            item = await self._coordinator.get(_NAMES + name)
            if item is None:
                raise TopicUnknown(f"no timeline {name!r}")
            entry = _read(item, _Entry)
            outcome = await self._coordinator.transact(
                [Delete(_NAMES + name), Put(_DELETED + name, _encode(_Deleted(entry.id)))],
                conditions=[Unchanged(_NAMES + name, item.revision)],
            )
            if outcome.applied:
                return TimelineRecord(name, TimelineId(entry.id), "deleting", entry.config)
        raise Unavailable(f"timeline {name!r} was not deleted: too many changes at once; try again")

    async def finish(self) -> list[str]:
        """Finishes what another broker has begun and left; the names that are done now."""
        done = []
        for name, record in (await self.records()).items():
            if record.state == "ready" or not await self._claim(name):
                continue

            try:
                if record.state == "creating":
                    await self._complete(name)
                else:
                    await self._remove(name)
                done.append(name)
            except DovetailError as error:
                _log.warning(
                    "timeline not finished yet", name=name, state=record.state, error=str(error)
                )
            finally:
                await self._coordinator.transact([Delete(_MASTERS + name)])
        return done

    async def adopt(self) -> list[str]:
        """Enters the timelines that an operator took over from a lost cluster; their names.

        It can be repeated, and several nodes can do it at once. Raises `InvalidSetting` where one
        of them has the number of a timeline of ours: two would share its tables.
        """
        adopted = await self._stores.adopted()
        entered = [await self._enter(number, label) for number, label in sorted(adopted.items())]
        if adopted:
            await self._stores.adoption_done()
        return entered

    async def _enter(self, number: TimelineId, label: bytes) -> str:
        was = _label_read(number, label)
        for _ in range(_ATTEMPTS_MAX):
            records = await self.records()
            there = next((r for r in records.values() if r.id == number), None)
            if there is not None and was.name not in (there.name, f"{there.name}-{number}"):
                raise InvalidSetting(
                    f"timeline {was.name!r} of the adopted schema has the number of this cluster's "
                    f"{there.name!r}; adopt it with a cluster that has no timelines yet"
                )
            if there is not None:
                return there.name

            name = was.name if was.name not in records else f"{was.name}-{number}"
            last = await self._coordinator.get(_LAST)
            highest = max(number, 0 if last is None else int(last.value))
            entry = _encode(_Entry(number, "ready", was.config))
            outcome = await self._coordinator.transact(
                [Put(_NAMES + name, entry), Put(_LAST, str(highest).encode())],
                conditions=[
                    Unchanged(_NAMES + name, ABSENT),
                    Unchanged(_DELETED + name, ABSENT),
                    Unchanged(_LAST, ABSENT if last is None else last.revision),
                ],
            )
            if outcome.applied:
                _log.info("timeline adopted", timeline=name, id=int(number))
                return name
        raise Unavailable(f"timeline {was.name!r} was not adopted: too many changes at once")

    async def _claim(self, name: str) -> bool:
        """Whether this node is the master of an entry now."""
        lease = None if self._leases is None else self._leases.lease_id
        mine = Put(_MASTERS + name, self._node.encode(), lease)
        outcome = await self._coordinator.transact(
            [mine], conditions=[Unchanged(_MASTERS + name, ABSENT)]
        )
        if outcome.applied:
            return True
        held = await self._coordinator.get(_MASTERS + name)
        # A mastership without a lease is of a former life of this, the only node.
        return held is not None and held.lease is None and held.value == self._node.encode()

    async def _complete(self, name: str) -> None:
        item = await self._coordinator.get(_NAMES + name)
        if item is None or _read(item, _Entry).state == "ready":
            return
        entry = _read(item, _Entry)
        await self._stores.provision(TimelineId(entry.id), _label(name, entry.config))
        ready = _encode(_Entry(entry.id, "ready", entry.config))
        await self._coordinator.transact(
            [Put(_NAMES + name, ready)], conditions=[Unchanged(_NAMES + name, item.revision)]
        )

    async def _remove(self, name: str) -> None:
        item = await self._coordinator.get(_DELETED + name)
        if item is None:
            return
        await self._stores.drop(TimelineId(_read(item, _Deleted).id))
        await self._coordinator.transact(
            [Delete(_DELETED + name)], conditions=[Unchanged(_DELETED + name, item.revision)]
        )

    async def changed(self) -> None:
        """Returns when something has changed since `records`. Raises `WatchGap`: read again."""
        async with self._coordinator.watch(PREFIX, after=self._revision) as changes:
            async for _ in changes:
                return


def _read(item: KeyValue, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(item.value, type=kind)
    except msgspec.DecodeError as error:
        raise Damaged(f"{item.key} cannot be read: {error}") from error
