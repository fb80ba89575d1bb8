"""Access rules: what users may do, by Kafka's ACLs.

A name that ends with `*` is a prefix. A timeline is a topic of its own kind: Kafka has no word for
it, so its rules name the topic `timeline:NAME`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from msgspec import Struct

from dovetail.access import CLUSTER_NAME, timeline_name
from dovetail.admin.kafka import Kafka
from dovetail.errors import InvalidInput
from dovetail.foreign import encoded, shown

OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "describe-configs",
    "alter-configs",
)

_TIMELINE = timeline_name("")

#: Its annotations do not know the None that stands for anything.
_FILTER: Any = AclBindingFilter

#: Kafka's kind of a resource, and its name.
Resource = tuple[str, str]


class Rule(Struct, frozen=True, order=True):
    """What a user may do, or may not, with what, from where."""

    user: str
    rule: str
    operation: str
    kind: str
    name: str
    host: str = "*"


def resources(
    *,
    topics: Iterable[str] | None,
    timelines: Iterable[str] | None,
    groups: Iterable[str] | None,
    transactional_ids: Iterable[str] | None = None,
    cluster: bool,
) -> list[Resource]:
    """What a rule is about. Raises `InvalidInput` if that is nothing."""
    named = [("topic", name) for name in topics or ()]
    named += [("timeline", name) for name in timelines or ()]
    named += [("group", name) for name in groups or ()]
    named += [("transactional_id", name) for name in transactional_ids or ()]
    if cluster:
        named.append(("cluster", CLUSTER_NAME))
    if not named:
        raise InvalidInput(
            "say what the rule is about: --topic, --timeline, --group, --transactional-id or "
            "--cluster"
        )
    return named


def rules_for(
    user: str,
    operations: Sequence[str],
    on: Sequence[Resource],
    *,
    permission: Literal["allow", "deny", "any"],
) -> list[Rule]:
    """A rule for each operation on each resource. Raises `InvalidInput`."""
    for operation in operations:
        if operation.lower() not in OPERATIONS:
            raise InvalidInput(
                f"{operation!r} is not an operation; write one of {', '.join(OPERATIONS)}"
            )
    return [
        Rule(user, permission, operation.lower(), kind, name)
        for operation in operations
        for kind, name in on
    ]


def list_rules(kafka: Kafka, *, user: str | None = None) -> list[Rule]:
    """All rules, or those that name this user. Raises `Unreachable`, `Refused`."""
    wanted = _FILTER(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None if user is None else f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = kafka.ask("listing access rules", lambda admin: {"all": admin.describe_acls(wanted)})[
        "all"
    ]
    return sorted(_rule(binding) for binding in found)


def add_rules(kafka: Kafka, rules: Sequence[Rule]) -> None:
    """Adds rules; again is no error. Raises `Refused`, `Uncertain`."""
    bindings = [AclBinding(*_fields(rule), "*", *_permission(rule)) for rule in rules]
    kafka.ask("adding access rules", lambda admin: admin.create_acls(bindings), changes=True)


def remove_rules(kafka: Kafka, rules: Sequence[Rule]) -> int:
    """Removes these rules from whatever host, and says how many there were."""
    filters = [_FILTER(*_fields(rule), None, *_permission(rule)) for rule in rules]
    removed = kafka.ask(
        "removing access rules", lambda admin: admin.delete_acls(filters), changes=True
    )
    return sum(len(bindings) for bindings in removed.values())


def _fields(rule: Rule) -> tuple[Any, str, Any, str]:
    kind, name = rule.kind.upper(), rule.name
    for text, what in ((name, "name"), (rule.user, "user")):
        # The C client below takes no half character, and ends a text at NUL.
        if b"\0" in encoded(text, what):
            raise InvalidInput(f"the {what} {shown(text)} holds NUL")
    if rule.kind == "timeline":
        kind, name = "TOPIC", timeline_name(name)
    if rule.kind == "cluster":
        kind = "BROKER"
    pattern = ResourcePatternType.LITERAL
    if len(rule.name) > 1 and name.endswith("*"):
        name, pattern = name[:-1], ResourcePatternType.PREFIXED
    return ResourceType[kind], name, pattern, f"User:{rule.user}"


def _permission(rule: Rule) -> tuple[Any, Any]:
    operation = rule.operation.upper().replace("-", "_")
    return AclOperation[operation], AclPermissionType[rule.rule.upper()]


def _rule(binding: Any) -> Rule:
    name, kind = binding.name, binding.restype.name.lower()
    if binding.resource_pattern_type is ResourcePatternType.PREFIXED:
        name += "*"
    if kind == "topic" and name.startswith(_TIMELINE):
        kind, name = "timeline", name.removeprefix(_TIMELINE)
    return Rule(
        user=binding.principal.removeprefix("User:"),
        rule=binding.permission_type.name.lower(),
        operation=binding.operation.name.lower().replace("_", "-"),
        kind="cluster" if kind == "broker" else kind,
        name=name,
        host=binding.host,
    )
