"""Topic settings: Kafka's names, types and bounds, and what they do to a batch."""

import pytest

from dovetail.compression import CODECS
from dovetail.errors import (
    BatchTooLarge,
    InvalidBatch,
    InvalidInput,
    InvalidTimestamp,
    TooFewCopies,
)
from dovetail.log.admission import admit
from dovetail.log.topic import TopicConfig, check_config
from dovetail.log.topic_settings import CONFIG_KEYS
from dovetail.record_batch import (
    CODEC_MASK,
    NewRecord,
    build_batch,
    check_batch,
    decode_batch,
    read_header,
)
from dovetail.storage import Quorum

NOW_MS = 1_700_000_000_000

#: What `LogConfig.configNames()` of Kafka 4.3.0 lists, without the one that is internal.
_LISTED = """
cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delete.retention.ms file.delete.delay.ms flush.messages flush.ms
follower.replication.throttled.replicas index.interval.bytes leader.replication.throttled.replicas
local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes
message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type
min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes
retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms
unclean.leader.election.enable
"""
KAFKA_NAMES = _LISTED.split()

#: Each was tried with Kafka's own `LogConfig.validate`; None: it refuses.
TRIED = [
    ("cleanup.policy", "", ""),
    ("cleanup.policy", "delete,delete", "delete"),
    ("cleanup.policy", "compact", "compact"),
    ("cleanup.policy", "compact, delete", "compact,delete"),
    ("cleanup.policy", "foo", None),
    ("retention.ms", " 5 ", "5"),
    ("retention.ms", "+5", "5"),
    ("retention.ms", "-2", None),
    ("retention.ms", "5.0", None),
    ("retention.ms", "", None),
    ("retention.ms", "9223372036854775808", None),
    ("retention.ms", "\u0665", None),
    ("retention.bytes", "-5", "-5"),
    ("segment.bytes", "1000", None),
    ("preallocate", "TRUE", "true"),
    ("preallocate", "yes", None),
    ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
    ("min.cleanable.dirty.ratio", "1.5", None),
    ("compression.type", " lz4 ", "lz4"),
    ("compression.type", "LZ4", None),
    ("compression.gzip.level", "0", None),
    ("compression.gzip.level", "-1", "-1"),
    ("leader.replication.throttled.replicas", "*", "*"),
    ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
    ("leader.replication.throttled.replicas", "", ""),
    ("leader.replication.throttled.replicas", "none", None),
    ("local.retention.ms", "-3", None),
    ("max.message.bytes", "0", "0"),
    ("max.message.bytes", "2147483648", None),
    ("message.timestamp.type", "createtime", None),
    ("unclean.leader.election.enable", "a\x00b\ud800", None),
]


def defaults(write: int = 1) -> TopicConfig:
    return TopicConfig(1, 2, 1 << 20, 4, 1 << 20, quorum=Quorum(write, write, 1))


def batch_of(*timestamps: int, codec: int = 0, value: bytes = b"v" * 200) -> memoryview:
    made = memoryview(bytearray(build_batch([NewRecord(t, b"k", value) for t in timestamps])))
    if codec == 0:
        return made
    config = defaults().with_overrides({"compression.type": CODECS[codec]})
    return admit(made, read_header(made), config, all_acks=True, now_ms=NOW_MS)[0]


def test_every_name_of_kafka_is_known_and_shown() -> None:
    """K12, F78: and nothing else is, but what is ours."""
    assert sorted(KAFKA_NAMES) == sorted(n for n in CONFIG_KEYS if not n.startswith("dovetail."))
    assert defaults().as_strings().keys() == CONFIG_KEYS.keys()
    shown = defaults().as_strings()
    for name, key in CONFIG_KEYS.items():
        if key.default is not None:
            assert key.canonical(shown[name]) == shown[name] == key.default


@pytest.mark.parametrize(("name", "value", "plain"), TRIED)
def test_values_are_read_as_kafka_reads_them(name: str, value: str, plain: str | None) -> None:
    """K12: blanks, capitals, lists, bounds and numbers of the wrong kind."""
    if plain is None:
        with pytest.raises(InvalidInput, match=name):
            check_config({name: value})
    else:
        assert check_config({name: value}) == {name: plain}


def test_ordinary_settings_of_kafka_are_kept() -> None:
    """K12, F78: the settings that a topic is usually created with."""
    wanted = {
        "min.insync.replicas": "2",
        "compression.type": "zstd",
        "delete.retention.ms": "1000",
        "unclean.leader.election.enable": "true",
        "message.timestamp.after.max.ms": "5000",
        "flush.ms": "1000",
    }
    own = defaults(write=3).with_overrides(check_config(wanted, defaults(write=3)))
    assert wanted.items() <= own.as_strings().items()
    assert defaults(write=3).with_overrides(own.as_strings()) == own


def test_what_would_promise_too_much_is_refused() -> None:
    """K12: a remote tier, larger batches than a frame holds, compaction that never comes."""
    for config in (
        {"remote.storage.enable": "true"},
        {"max.message.bytes": str(101 * 1024 * 1024)},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
    ):
        with pytest.raises(InvalidInput, match=next(iter(config))):
            check_config(config, defaults())


def test_min_insync_replicas_is_the_ack_quorum() -> None:
    """K12: the larger of both counts, and never more than there are copies."""
    for insync, ack in (("1", 1), ("2", 2), ("3", 3), ("4", 3)):
        own = defaults(write=3).with_overrides({"min.insync.replicas": insync})
        assert own.quorum.ack == ack

    batch = batch_of(NOW_MS)
    short = defaults(write=3).with_overrides({"min.insync.replicas": "4"})
    with pytest.raises(TooFewCopies, match=r"min.insync.replicas = 4"):
        admit(batch, read_header(batch), short, all_acks=True, now_ms=NOW_MS)
    assert admit(batch, read_header(batch), short, all_acks=False, now_ms=NOW_MS)[0] is batch


def test_times_out_of_range_are_refused() -> None:
    """K12: also a record that is not the first or the newest of its batch; -1 has no time."""
    config = defaults().with_overrides(
        {"message.timestamp.before.max.ms": "10", "message.timestamp.after.max.ms": "5"}
    )
    assert config.examines
    for times, fits in (
        ((NOW_MS - 10, NOW_MS + 5), True),
        ((NOW_MS, NOW_MS - 11, NOW_MS), False),
        ((NOW_MS, NOW_MS + 6), False),
        ((-1,), True),
    ):
        batch = batch_of(*times)
        if fits:
            admit(batch, read_header(batch), config, all_acks=True, now_ms=NOW_MS)
        else:
            with pytest.raises(InvalidTimestamp, match="the topic accepts"):
                admit(batch, read_header(batch), config, all_acks=True, now_ms=NOW_MS)

    stamping = config.with_overrides({"message.timestamp.type": "LogAppendTime"})
    old = batch_of(0)
    admit(old, read_header(old), stamping, all_acks=True, now_ms=NOW_MS)


@pytest.mark.parametrize("came", range(5))
@pytest.mark.parametrize("name", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_get_the_topics_codec(came: int, name: str) -> None:
    """K12: the records, their times and the producer stay; the checksum is right."""
    batch = batch_of(NOW_MS, NOW_MS + 1, codec=came)
    config = defaults().with_overrides({"compression.type": name})
    made, header = admit(batch, read_header(batch), config, all_acks=True, now_ms=NOW_MS)

    assert check_batch(made, bytes_max=1 << 20) == header
    assert header.attributes & CODEC_MASK == CODECS.index(name.replace("uncompressed", "none"))
    assert list(decode_batch(made)) == list(decode_batch(batch))


def test_a_batch_that_does_not_inflate_or_grows_too_large_is_refused() -> None:
    """K12: a stranger's batch is opened, so it can be wrong inside."""
    config = defaults().with_overrides(
        {"compression.type": "uncompressed", "max.message.bytes": "300"}
    )
    large = batch_of(NOW_MS, NOW_MS, codec=4)
    assert len(large) < 300
    with pytest.raises(BatchTooLarge, match=r"compression.type = uncompressed"):
        admit(large, read_header(large), config, all_acks=True, now_ms=NOW_MS)

    wrong = memoryview(bytearray(batch_of(NOW_MS, codec=4)))
    wrong[70:] = bytes(len(wrong) - 70)
    with pytest.raises(InvalidBatch):
        admit(wrong, read_header(wrong), config, all_acks=True, now_ms=NOW_MS)
