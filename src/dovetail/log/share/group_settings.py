"""The settings of single share groups, under Kafka's names, in the coordination service.

What a group does not set is the node's. Brokers watch the settings of all groups; a change applies
from the next request on.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from dovetail.coordination.mirror import Mirror
from dovetail.coordination.protocol import ABSENT, Coordinator, Delete, Put, Revision, Unchanged
from dovetail.errors import InvalidInput, Unavailable
from dovetail.foreign import check_group, check_topic
from dovetail.log.share.dead_letters import PREFIX
from dovetail.log.share.types import ShareSettings
from dovetail.logging import get_logger

_log = get_logger("log.share")

GROUP_SETTINGS = "/group-settings/"

#: Attempts to change an entry that others change too.
_ATTEMPTS_MAX = 20

_MS_MAX = 2**31 - 1

#: Of a group whose session is not longer than the node's interval: two can be lost.
_HEARTBEATS_PER_SESSION = 3

#: Days, hours, minutes and seconds: what `java.time.Duration` writes.
_DURATION = re.compile(
    r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})S)?)?", re.ASCII
)
_DURATION_PARTS_S = (86_400, 3_600, 60, 1)


@dataclass(frozen=True, slots=True)
class _Setting:
    """One of Kafka's settings of a share group."""

    field: str
    read: Callable[[str], object]
    show: Callable[[ShareSettings], str]


def _whole(least: int, most: int) -> Callable[[str], object]:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise InvalidInput(f"{text[:80]!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def _choice(*words: str) -> Callable[[str], object]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise InvalidInput(f"{text[:80]!r} is not one of {', '.join(words)}")
        return text.lower()

    return read


def _yes(text: str) -> bool:
    return _choice("true", "false")(text) == "true"


def _beginning(text: str) -> str:
    """ "by_duration:PT1H" is kept as its milliseconds."""
    kind, _, duration = text.partition(":")
    if kind.lower() in ("earliest", "latest") and not duration:
        return kind.lower()
    found = _DURATION.fullmatch(duration.upper())
    if kind.lower() != "by_duration" or found is None or not any(found.groups()):
        raise InvalidInput(
            f"{text[:80]!r} is not earliest, latest, or by_duration: and a time such as PT1H"
        )
    parts = zip(found.groups(), _DURATION_PARTS_S, strict=True)
    return f"by_duration:{sum(int(n or 0) * each for n, each in parts) * 1000}"


def _shown_beginning(settings: ShareSettings) -> str:
    kind, _, age_ms = settings.begins.partition(":")
    return f"{kind}:PT{int(age_ms) // 1000}S" if age_ms else kind


def _dead_letters(text: str) -> str:
    if text:
        check_topic(text)
    if text and not text.startswith(PREFIX):
        raise InvalidInput(f"dead letters go to topics that begin with {PREFIX!r}")
    return text


def _number(field: str, least: int, most: int) -> _Setting:
    return _Setting(field, _whole(least, most), lambda settings: str(getattr(settings, field)))


SETTINGS: Mapping[str, _Setting] = {
    "share.auto.offset.reset": _Setting("begins", _beginning, _shown_beginning),
    "share.delivery.count.limit": _number("deliveries_max", 2, 10),
    "share.heartbeat.interval.ms": _number("heartbeat_interval_ms", 100, 60_000),
    "share.isolation.level": _Setting(
        "committed_only",
        lambda text: _choice("read_committed", "read_uncommitted")(text) == "read_committed",
        lambda s: "read_committed" if s.committed_only else "read_uncommitted",
    ),
    "share.partition.max.record.locks": _number("in_flight_max", 100, 10_000),
    "share.record.lock.duration.ms": _number("lock_ms", 1_000, 3_600_000),
    "share.renew.acknowledge.enable": _Setting(
        "renews",
        lambda text: _choice("true", "false")(text) == "true",
        lambda s: str(s.renews).lower(),
    ),
    "share.session.timeout.ms": _number("session_timeout_ms", 300, _MS_MAX),
    "errors.deadletterqueue.copy.record.enable": _Setting(
        "dead_letters_whole",
        _yes,
        lambda s: str(s.dead_letters_whole).lower(),
    ),
    "errors.deadletterqueue.topic.name": _Setting(
        "dead_letters", _dead_letters, lambda s: s.dead_letters
    ),
}


class _Kept(msgspec.Struct, frozen=True):
    group_id: str
    values: dict[str, str]


class GroupSettingsTable:
    """The settings of all groups that have any."""

    def __init__(self, coordinator: Coordinator, defaults: ShareSettings) -> None:
        self.defaults = defaults
        self._coordinator = coordinator
        self._keys: dict[str, str] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._limits: dict[str, ShareSettings] = {}
        self._mirror = Mirror(coordinator, GROUP_SETTINGS, apply=self._apply, settled=lambda: None)

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    def of(self, group_id: str) -> ShareSettings:
        """The limits of a group."""
        return self._limits.get(group_id, self.defaults)

    def own(self, group_id: str) -> Mapping[str, str]:
        """What is set for the group itself."""
        return self._values.get(group_id, {})

    def groups(self) -> list[str]:
        """Those that have settings of their own."""
        return sorted(self._values)

    async def change(
        self,
        group_id: str,
        changes: Mapping[str, str | None],
        *,
        from_nothing: bool = False,
        check_only: bool = False,
    ) -> None:
        """Sets settings, or removes those of None. Raises `InvalidInput`, `Unavailable`."""
        check_group(group_id)
        for name, value in changes.items():
            if name not in SETTINGS:
                raise InvalidInput(f"unknown group setting {name[:80]!r}")
            if value is not None:
                SETTINGS[name].read(value)
        key = f"{GROUP_SETTINGS}{hashlib.sha256(group_id.encode()).hexdigest()[:32]}"

        for _ in range(_ATTEMPTS_MAX):
            found = await self._coordinator.get(key)
            values = {} if found is None else msgspec.json.decode(found.value, type=_Kept).values
            merged = {**({} if from_nothing else values), **changes}
            values = {name: value for name, value in merged.items() if value is not None}
            _limits(self.defaults, values)
            if check_only:
                return
            kept = msgspec.json.encode(_Kept(group_id, values))
            step = Put(key, kept) if values else Delete(key)
            outcome = await self._coordinator.transact(
                [step], conditions=[Unchanged(key, ABSENT if found is None else found.revision)]
            )
            if outcome.applied:
                self._mirror.note(key, kept if values else None, outcome.revision)
                return
        raise Unavailable("others keep changing these settings; try again")

    def _apply(self, key: str, value: bytes | None, _: Revision) -> None:
        before = self._keys.pop(key, None)
        if before is not None:
            self._values.pop(before, None)
            self._limits.pop(before, None)
        if value is not None:
            kept = msgspec.json.decode(value, type=_Kept)
            self._keys[key] = kept.group_id
            self._values[kept.group_id] = kept.values
            self._limits[kept.group_id] = _limits_of(kept, self.defaults)


def _limits_of(kept: _Kept, defaults: ShareSettings) -> ShareSettings:
    """The limits of a group, as well as they fit this node.

    They were checked by the node that took them: another one, or a later one, may have other
    settings, and must not fail by them.
    """
    try:
        return _limits(defaults, kept.values)
    except InvalidInput as error:
        _log.warning("a share group does not fit this node", group=kept.group_id, error=str(error))

    made = defaults
    for name, value in kept.values.items():
        with suppress(InvalidInput, KeyError):
            read = {SETTINGS[name].field: SETTINGS[name].read(value)}
            made = replace(made, **read)  # type: ignore[arg-type]
    # Members send several heartbeats in the time that they may be silent, whoever's that time is.
    most_ms = max(made.session_timeout_ms // _HEARTBEATS_PER_SESSION, 1)
    return replace(made, heartbeat_interval_ms=min(made.heartbeat_interval_ms, most_ms))


def _limits(defaults: ShareSettings, values: Mapping[str, str]) -> ShareSettings:
    """Raises `InvalidInput` if the settings do not go together."""
    read = {SETTINGS[n].field: SETTINGS[n].read(v) for n, v in values.items() if n in SETTINGS}
    made = replace(defaults, **read)  # type: ignore[arg-type]
    if made.heartbeat_interval_ms >= made.session_timeout_ms:
        raise InvalidInput("share.heartbeat.interval.ms is not less than share.session.timeout.ms")
    return made
