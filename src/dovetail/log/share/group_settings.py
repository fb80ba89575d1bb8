"""The settings of single groups, under Kafka's names, in the coordination service.

They are for groups of the new protocol and for share groups. What a group does not set is the
node's. Brokers watch the settings of all groups; a change applies from the next request on.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from dovetail.coordination.mirror import Mirror
from dovetail.coordination.protocol import ABSENT, Coordinator, Delete, Put, Revision, Unchanged
from dovetail.errors import InvalidInput, Unavailable
from dovetail.foreign import check_group, check_topic
from dovetail.log.groups.types import ConsumerLimits
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
class GroupSetting:
    """One of Kafka's settings of a group."""

    #: Of `ShareSettings` or `ConsumerLimits`; empty if the setting has no effect.
    field: str
    values: str
    doc: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise InvalidInput(f"{text[:80]!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def _choice(*words: str) -> Callable[[str], str]:
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


def _number(field: str, least: int, most: int, doc: str) -> GroupSetting:
    return GroupSetting(
        field,
        f"[{least}, {most}]",
        doc,
        _whole(least, most),
        lambda settings: str(getattr(settings, field)),
    )


def _flag(field: str, doc: str) -> GroupSetting:
    return GroupSetting(
        field, "true, false", doc, _yes, lambda settings: str(getattr(settings, field)).lower()
    )


#: Of share groups.
SETTINGS: Mapping[str, GroupSetting] = {
    "share.auto.offset.reset": GroupSetting(
        "begins",
        "latest, earliest, by_duration:PT1H",
        "Where it begins in a partition that it never read.",
        _beginning,
        _shown_beginning,
    ),
    "share.delivery.count.limit": _number(
        "deliveries_max", 2, 10, "After so many deliveries a record is given up."
    ),
    "share.heartbeat.interval.ms": _number(
        "heartbeat_interval_ms", 100, 60_000, "How often members send heartbeats."
    ),
    "share.isolation.level": GroupSetting(
        "committed_only",
        "read_uncommitted, read_committed",
        "Whether only records of committed transactions are delivered.",
        lambda text: _choice("read_committed", "read_uncommitted")(text) == "read_committed",
        lambda s: "read_committed" if s.committed_only else "read_uncommitted",
    ),
    "share.partition.max.record.locks": _number(
        "in_flight_max", 100, 10_000, "Most records of a partition in flight."
    ),
    "share.record.lock.duration.ms": _number(
        "lock_ms", 1_000, 3_600_000, "How long a member has a record."
    ),
    "share.renew.acknowledge.enable": _flag("renews", "Whether members may renew their locks."),
    "share.session.timeout.ms": _number(
        "session_timeout_ms", 300, _MS_MAX, "How long a member may be silent."
    ),
    "errors.deadletterqueue.copy.record.enable": _flag(
        "dead_letters_whole", "Whether a dead letter has the record's key, value and headers."
    ),
    "errors.deadletterqueue.topic.name": GroupSetting(
        "dead_letters",
        f"a topic that begins with {PREFIX}",
        "Where records go that were given up; empty: nowhere.",
        _dead_letters,
        lambda s: s.dead_letters,
    ),
}

#: Of groups of the new protocol.
CONSUMER_SETTINGS: Mapping[str, GroupSetting] = {
    "consumer.heartbeat.interval.ms": _number(
        "heartbeat_interval_ms", 100, 60_000, "How often members send heartbeats."
    ),
    "consumer.session.timeout.ms": _number(
        "session_timeout_ms", 300, _MS_MAX, "How long a member may be silent."
    ),
}

#: Kept and shown.
IDLE_SETTINGS: Mapping[str, GroupSetting] = {
    f"{kind}.assignment.interval.ms": GroupSetting(
        "",
        f"[0, {_MS_MAX}]",
        "No effect: a group assigns as soon as something changes.",
        _whole(0, _MS_MAX),
        lambda _: "0",
    )
    for kind in ("consumer", "share")
}

ALL_SETTINGS = {**CONSUMER_SETTINGS, **SETTINGS, **IDLE_SETTINGS}


class _Kept(msgspec.Struct, frozen=True):
    group_id: str
    values: dict[str, str]


class GroupSettingsTable:
    """The settings of all groups that have any."""

    def __init__(
        self,
        coordinator: Coordinator,
        defaults: ShareSettings,
        consumer_defaults: ConsumerLimits | None = None,
    ) -> None:
        self.defaults = defaults
        self.consumer_defaults = consumer_defaults or ConsumerLimits()
        self._coordinator = coordinator
        self._keys: dict[str, str] = {}
        self._values: dict[str, dict[str, str]] = {}
        self._limits: dict[str, ShareSettings] = {}
        self._consumer: dict[str, ConsumerLimits] = {}
        self._mirror = Mirror(coordinator, GROUP_SETTINGS, apply=self._apply, settled=lambda: None)

    async def start(self) -> None:
        """Reads everything, then follows. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        await self._mirror.stop()

    def of(self, group_id: str) -> ShareSettings:
        """The limits of a share group."""
        return self._limits.get(group_id, self.defaults)

    def consumer(self, group_id: str) -> ConsumerLimits:
        """The limits of a group of the new protocol."""
        return self._consumer.get(group_id, self.consumer_defaults)

    def shown(self, group_id: str) -> dict[str, str]:
        """Every setting of a group, of whichever kind."""
        own = self.own(group_id)
        return {
            **{name: one.show(self.consumer(group_id)) for name, one in CONSUMER_SETTINGS.items()},
            **{name: one.show(self.of(group_id)) for name, one in SETTINGS.items()},
            **{name: own.get(name, one.show(None)) for name, one in IDLE_SETTINGS.items()},
        }

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
            if name not in ALL_SETTINGS:
                raise InvalidInput(f"unknown group setting {name[:80]!r}")
            if value is not None:
                ALL_SETTINGS[name].read(value)
        key = f"{GROUP_SETTINGS}{hashlib.sha256(group_id.encode()).hexdigest()[:32]}"

        for _ in range(_ATTEMPTS_MAX):
            found = await self._coordinator.get(key)
            values = {} if found is None else msgspec.json.decode(found.value, type=_Kept).values
            merged = {**({} if from_nothing else values), **changes}
            values = {name: value for name, value in merged.items() if value is not None}
            _limits(self.defaults, values)
            _consumer_limits(self.consumer_defaults, values)
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
            self._consumer.pop(before, None)
        if value is not None:
            kept = msgspec.json.decode(value, type=_Kept)
            self._keys[key] = kept.group_id
            self._values[kept.group_id] = kept.values
            self._limits[kept.group_id] = _fit(kept, self.defaults, SETTINGS, _limits)
            self._consumer[kept.group_id] = _fit(
                kept, self.consumer_defaults, CONSUMER_SETTINGS, _consumer_limits
            )


_Limits = TypeVar("_Limits", ShareSettings, ConsumerLimits)


def _fit(
    kept: _Kept,
    defaults: _Limits,
    settings: Mapping[str, GroupSetting],
    limits: Callable[[_Limits, Mapping[str, str]], _Limits],
) -> _Limits:
    """The limits of a group, as well as they fit this node.

    They were checked by the node that took them: another one, or a later one, may have other
    settings, and must not fail by them.
    """
    try:
        return limits(defaults, kept.values)
    except InvalidInput as error:
        _log.warning("a group's settings do not fit", group=kept.group_id, error=str(error))

    made = defaults
    for name, value in kept.values.items():
        with suppress(InvalidInput, KeyError):
            made = replace(made, **{settings[name].field: settings[name].read(value)})
    # Members send several heartbeats in the time that they may be silent, whoever's that time is.
    most_ms = max(made.session_timeout_ms // _HEARTBEATS_PER_SESSION, 1)
    return replace(made, heartbeat_interval_ms=min(made.heartbeat_interval_ms, most_ms))


def _limits(defaults: ShareSettings, values: Mapping[str, str]) -> ShareSettings:
    """Raises `InvalidInput` if the settings do not go together."""
    return _checked("share", defaults, SETTINGS, values)


def _consumer_limits(defaults: ConsumerLimits, values: Mapping[str, str]) -> ConsumerLimits:
    """Raises `InvalidInput` if the settings do not go together."""
    return _checked("consumer", defaults, CONSUMER_SETTINGS, values)


def _checked(
    kind: str,
    defaults: _Limits,
    settings: Mapping[str, GroupSetting],
    values: Mapping[str, str],
) -> _Limits:
    read = {settings[n].field: settings[n].read(v) for n, v in values.items() if n in settings}
    made = replace(defaults, **read)
    if made.heartbeat_interval_ms >= made.session_timeout_ms:
        raise InvalidInput(
            f"{kind}.heartbeat.interval.ms is not less than {kind}.session.timeout.ms"
        )
    return made
