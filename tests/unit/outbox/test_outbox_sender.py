"""The sender of the relay against a broker that answers by a script."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing

import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)
from tests.unit.kafka.scripted_broker import HANG_UP, ScriptedBroker, scripted_broker

from dovetail.errors import InvalidInput, InvalidSetting, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.outbox.backends import brokers_of
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.drain import Fate, Outcome
from dovetail.outbox.sender import KafkaSender, encode
from dovetail.settings import Flag, Settings, load_settings


def _row(number: int, headers: str | None = None) -> Row:
    return Row(number, b"k", None, headers, b"value", f"m{number}", 1_000 + number)


SETS = {partition: [_row(10 * partition), _row(10 * partition + 1)] for partition in range(3)}
BATCH = Batch(
    ids=[row.id for rows in SETS.values() for row in rows],
    partitions=3,
    producer_id=7,
    epoch=3,
    first_by_partition={0: 5, 1: 6, 2: 7},
)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with scripted_broker(3) as started:
        yield started


@pytest.fixture
def sender(broker: ScriptedBroker) -> Iterator[KafkaSender]:
    with closing(KafkaSender(Brokers(broker.bootstrap), delivery_ms=5_000)) as made:
        yield made


def _fates(sent: "Future[dict[int, Outcome]]") -> dict[int, Fate]:
    return {partition: outcome.fate for partition, outcome in sent.result(30).items()}


def test_a_batch_goes_out_under_the_numbers_that_were_written_down(
    broker: ScriptedBroker, sender: KafkaSender
) -> None:
    """O7: the producer, its epoch and the sequence numbers are the relay's own."""
    assert sender.partitions("t") == 3
    assert sender.new_identity() == Identity(7, 3)
    assert set(_fates(sender.send("t", BATCH, SETS, None)).values()) == {Fate.ACKNOWLEDGED}
    assert broker.came == {0: [5], 1: [6], 2: [7]}


def test_each_partition_has_its_own_outcome(broker: ScriptedBroker, sender: KafkaSender) -> None:
    """O6: a batch that is refused in one partition is stored in the others."""
    broker.script[0] = [ErrorCode.MESSAGE_TOO_LARGE]
    broker.script[1] = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    sent = sender.send("t", BATCH, SETS, None)
    assert _fates(sent) == {0: Fate.REFUSED, 1: Fate.FORGOTTEN, 2: Fate.ACKNOWLEDGED}
    assert "MESSAGE_TOO_LARGE" in sent.result()[0].reason


def test_what_the_broker_has_already_counts_as_stored(
    broker: ScriptedBroker, sender: KafkaSender
) -> None:
    """O7: a batch whose offset the broker has forgotten."""
    broker.script[2] = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    assert set(_fates(sender.send("t", BATCH, SETS, None)).values()) == {Fate.ACKNOWLEDGED}


def test_what_can_pass_is_sent_again_under_the_same_numbers(
    broker: ScriptedBroker, sender: KafkaSender
) -> None:
    """O4, O7: a moved leader, an answer in time for nobody, a broken connection."""
    broker.script[1] = [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        HANG_UP,
    ]
    assert set(_fates(sender.send("t", BATCH, SETS, None)).values()) == {Fate.ACKNOWLEDGED}
    assert broker.came[1] == [6, 6, 6, 6]


def test_a_batch_that_nobody_takes_in_time_has_failed(broker: ScriptedBroker) -> None:
    """O4: it may or may not be stored; others of the same batch are."""
    broker.script[1] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000
    with closing(KafkaSender(Brokers(broker.bootstrap), delivery_ms=200)) as sender:
        sent = sender.send("t", BATCH, SETS, None)
        assert _fates(sent) == {0: Fate.ACKNOWLEDGED, 1: Fate.FAILED, 2: Fate.ACKNOWLEDGED}
        assert "NOT_LEADER_OR_FOLLOWER" in sent.result()[1].reason


def test_nothing_overtakes_a_batch_that_had_trouble(
    broker: ScriptedBroker, sender: KafkaSender
) -> None:
    """O5: the next one is sent when the one before it is acknowledged in full, else not at all."""
    broker.script[0] = [ErrorCode.MESSAGE_TOO_LARGE]
    first = sender.send("t", BATCH, SETS, None)
    second = sender.send("t", BATCH, SETS, first)
    third = sender.send("t", BATCH, SETS, second)
    assert set(_fates(second).values()) == {Fate.SKIPPED}
    assert set(_fates(third).values()) == {Fate.SKIPPED}
    assert all(len(numbers) == 1 for numbers in broker.came.values())


def test_a_broker_that_is_away_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """O4: whoever asks is told, and asks again later."""
    monkeypatch.setattr("dovetail.outbox.sender.METADATA_S", 0.1)
    with closing(KafkaSender(Brokers("127.0.0.1:1"), delivery_ms=100)) as sender:
        with pytest.raises(Unavailable, match=r"cannot find topic 't' at 127\.0\.0\.1:1"):
            sender.partitions("t")
        with pytest.raises(Unavailable, match="cannot get a producer id"):
            sender.new_identity()
        assert set(_fates(sender.send("t", BATCH, SETS, None)).values()) == {Fate.FAILED}


def test_an_address_that_is_none_is_refused_at_once() -> None:
    """B18: before a thread of the relay meets it."""
    with pytest.raises(InvalidInput, match="'here' is not of the form host:port"):
        KafkaSender(Brokers("here"), delivery_ms=100)


def test_record_batches_are_those_of_another_client() -> None:
    """O2, O7: byte for byte what aiokafka builds, headers of all kinds included."""
    rows = [_row(1), _row(2, '[["a", "b"], ["c", "ZA==", "base64"]]'), _row(300)]
    made = encode(rows, producer_id=7, epoch=3, sequence=5)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=7,
        producer_epoch=3,
        base_sequence=5,
        batch_size=1 << 20,
    )
    others = [[], [("a", b"b"), ("c", b"d")], []]
    for at, (row, more) in enumerate(zip(rows, others, strict=True)):
        headers = [("dovetail-message-id", row.message_id.encode()), *more]
        builder.append(at, row.created_ms, row.key, row.payload, headers)
    assert made.data == bytes(builder.build())
    assert made.count == 3
    read = list(DefaultRecordBatch(bytearray(made.data)))
    assert [record.timestamp for record in read] == [row.created_ms for row in rows]


def test_a_login_that_makes_no_sense_is_a_wrong_setting() -> None:
    """R4, B18: the relay does not start with it; PLAIN would show the password to everybody."""
    flags = {
        "outbox.kafka": "127.0.0.1:9092",
        "outbox.security_protocol": "sasl_plaintext",
        "outbox.sasl_username": "shop",
        "outbox.sasl_password": "secret",
    }
    with pytest.raises(
        InvalidSetting, match="section outbox: PLAIN sends the password unencrypted"
    ):
        brokers_of(_settings(flags))
    over_scram = _settings({**flags, "outbox.sasl_mechanism": "SCRAM-SHA-512"})
    assert brokers_of(over_scram).login().user == "shop"


def _settings(flags: dict[str, str]) -> Settings:
    return load_settings(flags=[Flag(name, value, name) for name, value in flags.items()])
