"""The judgement over access rules, against a slow and plain one."""

import itertools
import random
import shlex

import pytest

from dovetail.access import CLUSTER_NAME, Filter, Kind, Operation, Pattern, Permission, Rule
from dovetail.access.guard import Guard
from dovetail.access.rules import RuleIndex, allows, allows_some, check_rule, timeline_name
from dovetail.errors import Forbidden, InvalidInput

NAMES = ("a", "ab", "abc", "b", "*")
PRINCIPALS = ("alice", "bob", "*")
HOSTS = ("10.0.0.1", "*")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)


def random_rule(rng: random.Random) -> Rule:
    pattern = rng.choice(tuple(Pattern))
    names = [name for name in NAMES if name != "*" or pattern is Pattern.LITERAL]
    return Rule(
        principal=rng.choice(PRINCIPALS),
        permission=rng.choice(tuple(Permission)),
        operation=rng.choice(OPERATIONS),
        kind=rng.choice((Kind.TOPIC, Kind.GROUP)),
        name=rng.choice(names),
        pattern=pattern,
        host=rng.choice(HOSTS),
    )


def plainly(rules: list[Rule], who: str, host: str, what: Operation, kind: Kind, name: str) -> bool:
    """The same judgement, one sentence after the other."""
    about = [
        rule
        for rule in rules
        if rule.kind is kind
        and (rule.principal == who or rule.principal == "*")
        and (rule.host == host or rule.host == "*")
        and (
            (rule.pattern is Pattern.PREFIXED and name[: len(rule.name)] == rule.name)
            or (rule.pattern is Pattern.LITERAL and (rule.name == name or rule.name == "*"))
        )
    ]
    for rule in about:
        if rule.permission is Permission.DENY and (
            rule.operation is what or rule.operation is Operation.ALL
        ):
            return False
    for rule in about:
        if rule.permission is Permission.ALLOW:
            if rule.operation is what or rule.operation is Operation.ALL:
                return True
            if what is Operation.DESCRIBE and rule.operation in (Operation.READ, Operation.WRITE):
                return True
            if what is Operation.DESCRIBE_CONFIGS and rule.operation is Operation.ALTER_CONFIGS:
                return True
    return False


def test_the_judgement_is_the_plain_one() -> None:
    """R4: deny by default, deny before allow, prefixes, everybody, implied operations."""
    rng = random.Random(7)
    seen = set()
    for _ in range(500):
        rules = [random_rule(rng) for _ in range(rng.randrange(5))]
        for who, host, what, kind, name in itertools.product(
            ("alice", "eve"), ("10.0.0.1", "10.0.0.2"), OPERATIONS[1:], (Kind.TOPIC,), ("ab", "b")
        ):
            found = allows(rules, who, host, what, kind, name)
            assert found is plainly(rules, who, host, what, kind, name), rules
            few = RuleIndex(rules).about(who, kind, name)
            assert allows(few, who, host, what, kind, name) is found, rules
            seen.add(found)
    assert seen == {True, False}


@pytest.mark.parametrize(
    "rule",
    [
        Rule("alice", Permission.ALLOW, Operation.READ, Kind.TOPIC, ""),
        Rule("", Permission.ALLOW, Operation.READ, Kind.TOPIC, "a"),
        Rule("alice", Permission.ALLOW, Operation.READ, Kind.CLUSTER, "a"),
        Rule("alice", Permission.ALLOW, Operation.READ, Kind.TOPIC, "*", Pattern.PREFIXED),
        Rule("a" * 2000, Permission.ALLOW, Operation.READ, Kind.TOPIC, "a"),
    ],
)
def test_a_rule_that_means_nothing_is_refused(rule: Rule) -> None:
    """R4, U7: before it is kept."""
    with pytest.raises(InvalidInput):
        check_rule(rule)


def test_filters() -> None:
    """R4: any, equal, and everything that is about a name."""
    exact = Rule("alice", Permission.ALLOW, Operation.READ, Kind.TOPIC, "orders")
    begins = Rule("bob", Permission.DENY, Operation.ALL, Kind.TOPIC, "ord", Pattern.PREFIXED)
    cluster = Rule("bob", Permission.ALLOW, Operation.ALTER, Kind.CLUSTER, CLUSTER_NAME)
    rules = [exact, begins, cluster]

    def found(wanted: Filter) -> list[Rule]:
        return [rule for rule in rules if wanted.takes(rule)]

    assert found(Filter()) == rules
    assert found(Filter(principal="bob")) == [begins, cluster]
    assert found(Filter(kind=Kind.TOPIC, name="orders")) == [exact]
    assert found(Filter(kind=Kind.TOPIC, name="orders", matching=True)) == [exact, begins]
    assert found(Filter(permission=Permission.DENY)) == [begins]


def test_a_judgement_looks_at_few_rules() -> None:
    """F62: of thousands of rules only those of the principal and the name are walked."""
    rules = [
        Rule(
            principal=f"user-{number % 100}",
            permission=Permission.ALLOW,
            operation=Operation.READ,
            kind=Kind.TOPIC,
            name=f"team-{number:04}",
            pattern=Pattern.PREFIXED if number % 2 else Pattern.LITERAL,
        )
        for number in range(5000)
    ]
    index = RuleIndex(rules)
    assert index.about("user-1", Kind.TOPIC, "team-0101-orders") == [rules[101]]
    assert index.about("user-2", Kind.TOPIC, "team-0102") == [rules[102]]
    assert index.about("user-2", Kind.TOPIC, "team-0101") == []
    assert index.about("user-2", Kind.GROUP, "team-0102") == []


def test_some_name_is_allowed_if_one_can_be_named() -> None:
    """F50: what InitProducerId asks agrees with the judgement over names."""
    rng = random.Random(11)
    names = [*NAMES[:-1], "abcd", "c", "something else"]
    seen = set()
    for _ in range(2000):
        rules = [random_rule(rng) for _ in range(rng.randrange(6))]
        found = allows_some(rules, "alice", HOSTS[0], Operation.WRITE, Kind.TOPIC)
        if any(
            allows(rules, "alice", HOSTS[0], Operation.WRITE, Kind.TOPIC, name) for name in names
        ):
            assert found, rules
        elif not any(rule.pattern is Pattern.PREFIXED for rule in rules):
            assert not found, rules
        seen.add(found)
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("operation", "kind", "name", "options"),
    [
        (Operation.DESCRIBE, Kind.CLUSTER, CLUSTER_NAME, ["describe", "--cluster"]),
        (Operation.READ, Kind.TOPIC, "my orders", ["read", "--topic", "my orders"]),
        (Operation.READ, Kind.TOPIC, timeline_name("mails"), ["read", "--timeline", "mails"]),
        (Operation.ALTER_CONFIGS, Kind.GROUP, "g", ["alter-configs", "--group", "g"]),
        (Operation.WRITE, Kind.TRANSACTIONAL_ID, "x", ["write", "--transactional-id", "x"]),
    ],
)
def test_a_refusal_names_the_whole_command(
    operation: Operation, kind: Kind, name: str, options: list[str]
) -> None:
    """U7: what an admin types to allow it, ready to be copied into a shell."""
    nobody = Guard(lambda *_: False, lambda *_: False, []).bind("the shop", "10.0.0.1")
    with pytest.raises(Forbidden) as refused:
        nobody.demand(operation, kind, name)
    command = str(refused.value).partition("with: ")[2]
    assert shlex.split(command) == ["dovetail", "access", "allow", "the shop", *options]
