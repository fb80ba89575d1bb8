"""Records of the shared log are signed: forged and copied ones do not count, for any reader."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.conftest import RunningNode
from tests.unit.election.shared_log_conformance import DEADLINE_S, claim, register, report

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator, Put
from dovetail.election import CoordinationSharedLog, KafkaSharedLog, MemberName, SharedLog
from dovetail.election.fold import LogState, encode_record
from dovetail.election.shared_log import Entry, Signing
from dovetail.election.signature import SIGNATURE_HEADER, RecordSigner
from dovetail.errors import Unavailable, Uncertain

SECRET, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_a_signature_covers_everything() -> None:
    """S14: environment, record, writer and number; another secret opens nothing."""
    signer = RecordSigner(SECRET.encode(), "w1")
    first, second = (signer.sign("test", b"record") for _ in range(2))
    assert first != second
    assert signer.mark_of("test", b"record", first) == ("w1", 1)
    assert signer.mark_of("test", b"record", second) == ("w1", 2)
    assert signer.mark_of("prod", b"record", first) is None
    assert signer.mark_of("test", b"recorD", first) is None
    assert RecordSigner(OTHER.encode(), "w1").mark_of("test", b"record", first) is None
    for at in range(len(first)):
        changed = first[:at] + bytes([first[at] ^ 1]) + first[at + 1 :]
        assert signer.mark_of("test", b"record", changed) is None


@pytest.mark.parametrize(
    "signature",
    [None, b"", b" ", b"a b", b"a 1", b"w1 -1 x", b"\xff\x00 1 \xff", b"w " + b"9" * 99],
)
def test_a_signature_that_is_none(signature: bytes | None) -> None:
    """S14, R6: whatever stands there."""
    assert RecordSigner(SECRET.encode(), "w1").mark_of("test", b"record", signature) is None


def test_each_number_is_taken_once() -> None:
    """S14: also by who starts from a snapshot."""
    state = LogState()
    assert [state.is_new("a", n) for n in (1, 2, 2, 1, 5, 4)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    later = LogState()
    later.start_from(state.snapshot(base=9), now=_moment())
    assert not later.is_new("a", 5)
    assert later.is_new("a", 6)
    assert later.is_new("b", 1)


def _moment() -> object:
    from dovetail.election.fold import Moment

    return Moment(0, 0.0)


def kafka_log(node: RunningNode, topic: str, **given: object) -> KafkaSharedLog:
    values = {"environment": "test", "timeout_ms": 5_000, "signing": Signing(SECRET), **given}
    return KafkaSharedLog(node.bootstrap, topic=topic, **values)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def opened(log: SharedLog) -> AsyncIterator[list[Entry]]:
    entries: list[Entry] = []
    await log.open(entries.append)
    try:
        yield entries
    finally:
        await log.close()


async def _until(log: SharedLog, member: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while log.state.heard_of(MemberName(member)) is None:
            await asyncio.sleep(0.01)


def _raw_records(node: RunningNode, topic: str) -> list[tuple[bytes, bytes, list]]:  # type: ignore[type-arg]
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    found = []
    while not found or found[-1][0] < end - 1:
        message = consumer.poll(DEADLINE_S)
        found.append((message.offset(), message.key(), message.value(), message.headers() or []))
    consumer.close()
    return [record[1:] for record in found]


async def test_forged_and_copied_records_do_not_count(node: RunningNode) -> None:
    """S14, F48: by who can write the topic and does not know the secret; for every reader."""
    topic = f"shared-{uuid.uuid4().hex}"
    async with opened(kafka_log(node, topic)) as entries, opened(kafka_log(node, topic)):
        log = kafka_log(node, topic)
        async with opened(log):
            await log.append(register("a", 3))
            await log.append(claim(1, "a"))
            await log.append(report(1, "a", 1, 10))
            genuine = await asyncio.to_thread(_raw_records, node, topic)

            forger = RecordSigner(OTHER.encode(), "forger")
            bad = encode_record(claim(99, "mallory"))
            producer = Producer({"bootstrap.servers": node.bootstrap})
            for headers in ([], [(SIGNATURE_HEADER, forger.sign("test", bad))]):
                producer.produce(topic, bad, key=b"test", headers=headers, partition=0)
            # The report once more, which would make a dead leader look alive.
            for key, value, headers in genuine:
                producer.produce(topic, value, key=key, headers=headers, partition=0)
            assert producer.flush(DEADLINE_S) == 0
            await log.append(report(1, "a", 2, 20))

            assert (log.state.term, log.state.leader) == (1, "a")
            assert log.state.position == {0: 20}
        late = kafka_log(node, topic)
        async with opened(late):
            assert (late.state.term, late.state.position) == (1, {0: 20})
    assert [type(entry.record).__name__ for entry in entries] == [
        "Register",
        "Claim",
        "Report",
        "Report",
    ]


async def test_a_snapshot_that_was_copied_is_not_believed(node: RunningNode) -> None:
    """S14: who finds the log cut off does not start from an older state."""
    topic = f"shared-{uuid.uuid4().hex}"
    log = kafka_log(node, topic)
    async with opened(log):
        await log.append(claim(1, "a"))
        await log.append(report(1, "a", 1, 10))
        await log.trim()
        old = (await asyncio.to_thread(_raw_records, node, topic))[-1]
        await log.append(report(1, "a", 2, 20))
        producer = Producer({"bootstrap.servers": node.bootstrap})
        producer.produce(topic, old[1], key=old[0], headers=old[2], partition=0)
        assert producer.flush(DEADLINE_S) == 0
        await log.trim()
        producer.produce(topic, old[1], key=old[0], headers=old[2], partition=0)
        assert producer.flush(DEADLINE_S) == 0
        await log.append(report(1, "a", 3, 30))
    late = kafka_log(node, topic)
    async with opened(late):
        assert (late.state.term, late.state.position) == (1, {0: 30})


async def test_members_that_do_not_sign_yet_are_understood_on_request(node: RunningNode) -> None:
    """S14, R9: while they are replaced one by one."""
    topic = f"shared-{uuid.uuid4().hex}"
    old = kafka_log(node, topic, signing=None)
    new = kafka_log(node, topic, signing=Signing(SECRET, required=False))
    strict = kafka_log(node, topic)
    async with opened(old), opened(new), opened(strict):
        await old.append(register("a"))
        await new.append(register("b"))
        await _until(new, "a")
        await _until(old, "b")
        await _until(strict, "b")
        assert strict.state.heard_of(MemberName("a")) is None


async def test_a_log_with_two_secrets_is_not_trimmed(node: RunningNode) -> None:
    """S14: nobody could sign the snapshot of the other environment."""
    topic = f"shared-{uuid.uuid4().hex}"
    prod = kafka_log(node, topic, environment="prod", signing=Signing(OTHER))
    log = kafka_log(node, topic)
    async with opened(prod), opened(log):
        await prod.append(claim(7, "p"))
        await log.append(claim(1, "a"))
        before = log.untrimmed_count
        await log.trim()
        assert log.untrimmed_count == before
        late = kafka_log(node, topic, environment="prod", signing=Signing(OTHER))
        async with opened(late):
            assert late.state.term == 7


async def test_forged_records_in_a_coordination_service(tmp_path: Path) -> None:
    """S14: the same there; a forged record is passed over, and the log goes on."""
    service = await EmbeddedCoordinator.open(tmp_path / "c.db", clock=SystemClock())

    def make() -> CoordinationSharedLog:
        return CoordinationSharedLog(
            service, name="s", environment="test", timeout_ms=2_000, signing=Signing(SECRET)
        )

    log = make()
    try:
        async with opened(log):
            await log.append(claim(1, "a"))
            forged = b"1\n" + encode_record(claim(99, "mallory"))
            root = "/streams/s/test/"
            await service.transact(
                [Put(f"{root}log/{1:016d}", forged), Put(f"{root}head", b"1")], conditions=[]
            )
            with contextlib.suppress(Uncertain, Unavailable):
                await log.append(report(1, "a", 1, 10))
            await log.append(report(1, "a", 2, 20))
            assert (log.state.term, log.state.position) == (1, {0: 20})
        late = make()
        async with opened(late):
            assert (late.state.term, late.state.position) == (1, {0: 20})
    finally:
        await service.close()
