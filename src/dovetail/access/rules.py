"""What a principal may do: rules, and the decision over them; pure.

A rule names a principal (or everybody), a host (or any), an operation (or all), and the topics,
groups, transactional ids or cluster to which it applies, by name, by prefix, or all of them. Names
and numbers are Kafka's, so that its tools can list and change them. Timelines are topics under the
name `timeline:NAME`, which no log topic can have.

The decision: a rule that denies ends it; otherwise one that allows is needed. A principal that may
read, write, delete or alter something may also see that it exists.
"""

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from dovetail.errors import InvalidInput

#: The one resource of kind `CLUSTER`.
CLUSTER_NAME = "kafka-cluster"
#: Every principal, every host, every name.
ANY = "*"

#: Longest name, principal or host that is kept.
_TEXT_MAX = 1024


class Kind(IntEnum):
    """What a rule is about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Pattern(IntEnum):
    """How a rule's name is meant."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """What a rule says."""

    DENY = 2
    ALLOW = 3


#: Operations that allow another one with them.
_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}


class Rule(msgspec.Struct, frozen=True):
    """One line of the access rules; equal ones are the same rule."""

    principal: str
    permission: Permission
    operation: Operation
    kind: Kind
    name: str
    pattern: Pattern = Pattern.LITERAL
    host: str = ANY

    def covers(self, kind: Kind, name: str) -> bool:
        """Whether the rule is about this."""
        if kind is not self.kind:
            return False
        if self.pattern is Pattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (ANY, name)

    def concerns(self, principal: str, host: str) -> bool:
        """Whether the rule is about this client."""
        return self.principal in (ANY, principal) and self.host in (ANY, host)


class Filter(msgspec.Struct, frozen=True):
    """Which rules are meant; None stands for any."""

    principal: str | None = None
    permission: Permission | None = None
    operation: Operation | None = None
    kind: Kind | None = None
    name: str | None = None
    pattern: Pattern | None = None
    host: str | None = None
    #: Every rule that is about the name, whatever its pattern.
    matching: bool = False

    def takes(self, rule: Rule) -> bool:
        """Whether a rule is meant."""
        for wanted, found in (
            (self.principal, rule.principal),
            (self.permission, rule.permission),
            (self.operation, rule.operation),
            (self.kind, rule.kind),
            (self.host, rule.host),
        ):
            if wanted is not None and wanted != found:
                return False
        if self.matching:
            return self.name is None or rule.covers(rule.kind, self.name)
        return self.pattern in (None, rule.pattern) and self.name in (None, rule.name)


def check_rule(rule: Rule) -> None:
    """Raises `InvalidInput` if a rule could never mean anything."""
    for what, text in (("name", rule.name), ("principal", rule.principal), ("host", rule.host)):
        if not 0 < len(text) <= _TEXT_MAX:
            raise InvalidInput(f"a rule's {what} has 1 to {_TEXT_MAX} characters, not {len(text)}")
    if rule.kind is Kind.CLUSTER and rule.name != CLUSTER_NAME:
        raise InvalidInput(f"a rule names the cluster {CLUSTER_NAME!r}, not {rule.name!r}")
    if rule.pattern is Pattern.PREFIXED and (rule.name == ANY or rule.kind is Kind.CLUSTER):
        raise InvalidInput(f"{rule.name!r} cannot be a prefix")


def allows(
    rules: Iterable[Rule], principal: str, host: str, operation: Operation, kind: Kind, name: str
) -> bool:
    """The judgement."""
    allowed = False
    enough = {operation, Operation.ALL} | _IMPLIED_BY.get(operation, frozenset())
    for rule in rules:
        if not (rule.concerns(principal, host) and rule.covers(kind, name)):
            continue
        if rule.permission is Permission.DENY:
            if rule.operation in (operation, Operation.ALL):
                return False
        elif rule.operation in enough:
            allowed = True
    return allowed


def allows_some(
    rules: Iterable[Rule], principal: str, host: str, operation: Operation, kind: Kind
) -> bool:
    """Whether there is any name of this kind for which the judgement would be yes."""
    ours = [rule for rule in rules if rule.kind is kind and rule.concerns(principal, host)]
    enough = {operation, Operation.ALL} | _IMPLIED_BY.get(operation, frozenset())
    denied = [
        rule
        for rule in ours
        if rule.permission is Permission.DENY and rule.operation in (operation, Operation.ALL)
    ]
    return any(
        rule.permission is Permission.ALLOW
        and rule.operation in enough
        and not any(_contains(denial, rule) for denial in denied)
        for rule in ours
    )


def _contains(outer: Rule, inner: Rule) -> bool:
    """Whether a rule is about every name that another one is about."""
    if outer.pattern is Pattern.LITERAL and outer.name == ANY:
        return True
    if inner.pattern is Pattern.LITERAL and inner.name == ANY:
        return False
    if outer.pattern is Pattern.PREFIXED:
        return inner.name.startswith(outer.name)
    return inner.pattern is Pattern.LITERAL and inner.name == outer.name


class RuleIndex:
    """Rules indexed by principal and resource, so that a decision examines few of them."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._named: dict[tuple[Kind, str, Pattern, str], list[Rule]] = {}
        #: How long the prefixes are in the rules of a principal.
        self._lengths: dict[tuple[Kind, str], set[int]] = {}
        for rule in rules:
            key = (rule.kind, rule.principal, rule.pattern, rule.name)
            self._named.setdefault(key, []).append(rule)
            if rule.pattern is Pattern.PREFIXED:
                self._lengths.setdefault((rule.kind, rule.principal), set()).add(len(rule.name))

    def about(self, principal: str, kind: Kind, name: str) -> list[Rule]:
        """Those that can matter for this principal and name, whatever the host."""
        found: list[Rule] = []
        for who in {principal, ANY}:
            for literal in {name, ANY}:
                found += self._named.get((kind, who, Pattern.LITERAL, literal), ())
            for length in self._lengths.get((kind, who), ()):
                if length <= len(name):
                    found += self._named.get((kind, who, Pattern.PREFIXED, name[:length]), ())
        return found


def timeline_name(name: str) -> str:
    """What rules call a timeline; a log topic's name has no colon."""
    return f"timeline:{name}"
