"""The quorums of a topic: its own, checked together with the node's defaults."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.log.topic import TopicConfig, check_config, config_for_copies
from dovetail.storage import Quorum

NAMES = ("dovetail.ensemble", "dovetail.write.quorum", "dovetail.ack.quorum")
READ = "dovetail.read.quorum"


def defaults(*sizes: int) -> TopicConfig:
    return TopicConfig(-1, -1, 1 << 20, 1000, 1 << 20, quorum=Quorum(*sizes))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"dovetail.write.quorum": "4"}, "write quorum 4 > ensemble 3"),
        ({"dovetail.ensemble": "2"}, "write quorum 3 > ensemble 2"),
        ({"dovetail.ack.quorum": "4"}, "ack quorum 4 > write quorum 3"),
        ({"dovetail.write.quorum": "1"}, "ack quorum 2 > write quorum 1"),
        ({"dovetail.ack.quorum": "0"}, r"dovetail.ack.quorum = 0 is not in \[1, 64\]"),
        ({READ: "1"}, "read quorum 1 . ack quorum 2 must be more than write quorum 3"),
        ({READ: "3"}, r"read quorum 3: .* = 2 nodes say so, never more; leave it out"),
        ({READ: "many"}, "is not a whole number"),
        ({"dovetail.ensemble": "65"}, r"is not in \[1, 64\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_their_rule(config: dict[str, str], rule: str) -> None:
    """L2, F77: also where one half of the combination is the node's default, and where more is
    asked for than is held to."""
    with pytest.raises(InvalidInput, match=rule):
        check_config(config, defaults(3, 3, 2))


@given(
    st.dictionaries(st.sampled_from((*NAMES, READ)), st.integers(1, 5)),
    st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)),
)
def test_the_rules_against_a_dumb_version(own: dict[str, int], node: tuple[int, int, int]) -> None:
    """L2, F77: accepted exactly if E >= Qw >= Qa >= 1 and Qr = Qw - Qa + 1, which is held to."""
    given_defaults = defaults(*node)
    ensemble, write, ack = (own.get(n, d) for n, d in zip(NAMES, node, strict=True))
    same = (ensemble, write, ack) == node
    read = own.get(READ, given_defaults.read_quorum if same else write - ack + 1)
    fits = ensemble >= write >= ack >= 1 and read == write - ack + 1
    config = {name: str(value) for name, value in own.items()}
    if not fits:
        with pytest.raises(InvalidInput):
            check_config(config, given_defaults)
        return
    check_config(config, given_defaults)
    found = given_defaults.with_overrides(config)
    assert (found.quorum, found.read_quorum) == (Quorum(ensemble, write, ack), read)
    assert given_defaults.with_overrides(found.as_strings()) == found


@pytest.mark.parametrize(("copies", "sizes"), [(1, (1, 1, 1)), (2, (2, 2, 2)), (3, (3, 3, 2))])
def test_a_number_of_copies_is_enough(copies: int, sizes: tuple[int, int, int]) -> None:
    """L2: what a Kafka client calls replication factor, whatever the node's defaults are."""
    for node in (defaults(1, 1, 1), defaults(5, 3, 2)):
        config = config_for_copies(copies)
        check_config(config, node)
        assert node.with_overrides(config).quorum == Quorum(*sizes)
        assert node.with_overrides(config).read_quorum == sizes[1] - sizes[2] + 1


def test_quorums_are_shown() -> None:
    """L14: DescribeConfigs shows what the next ledger gets."""
    shown = defaults(3, 3, 2).with_overrides({"dovetail.ensemble": "5"}).as_strings()
    assert [shown[name] for name in (*NAMES, READ)] == ["5", "3", "2", "2"]
