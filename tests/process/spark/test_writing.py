"""Reading and writing on a real node, without Spark: what attempts of a task do to each other."""

import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import NodeFactory, RunningNode

pa = pytest.importorskip("pyarrow")

from dovetail.errors import (  # noqa: E402
    InvalidInput,
    OffsetOutOfRange,
    ProducerFenced,
    TopicUnknown,
    Unavailable,
)
from dovetail.kafka.client.brokers import Brokers  # noqa: E402
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient  # noqa: E402
from dovetail.spark import writing  # noqa: E402
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow  # noqa: E402
from dovetail.spark.exactly_once import ID_HEADER, Attempt, group_of, marks_after  # noqa: E402
from dovetail.spark.fetching import fetch  # noqa: E402
from dovetail.spark.options import WriteOptions  # noqa: E402
from dovetail.spark.writing import TaskWriter  # noqa: E402

PARTITIONS = 3


@pytest.fixture
def client(node: RunningNode) -> Iterator[KafkaClient]:
    """A client of the module's node."""
    made = KafkaClient(Brokers(node.bootstrap), timeout_s=30)
    yield made
    made.close()


@pytest.fixture
def topic(node: RunningNode) -> str:
    """A new topic."""
    return new_topic(node)


def new_topic(
    node: RunningNode, partitions: int = PARTITIONS, config: dict[str, str] | None = None
) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    made = NewTopic(name, num_partitions=partitions, config=config or {})
    admin.create_topics([made])[name].result(30)
    return name


def rows_of(client: KafkaClient, topic: str) -> list[dict[str, Any]]:
    """All records, in order of partition and offset."""
    found: list[dict[str, Any]] = []
    for number in client.partitions([topic])[topic]:
        place = (topic, number)
        low, high = (client.offsets({place: at})[place] for at in (EARLIEST, LATEST))
        for fetched in fetch(client, place, low, high):
            arrow = to_arrow(
                fetched.batches,
                (topic, number),
                offset_min=low,
                offset_end=high,
                columns=COLUMNS_WITH_HEADERS,
            )
            found += arrow.to_pylist()
    return found


def table(numbers: list[int], *, ids: bool = False) -> pa.RecordBatch:
    columns = {
        "key": pa.array([f"k{n % 40}" for n in numbers]),
        "value": pa.array([b"%d" % n for n in numbers], pa.binary()),
    }
    if ids:
        columns["id"] = pa.array([f"id{n}" for n in numbers])
    return pa.record_batch(columns)


def writer(client: KafkaClient, topic: str, **changes: Any) -> TaskWriter:
    return writer_to(client, topic, query=topic, **changes)


def writer_to(
    client: KafkaClient,
    topic: str | None,
    *,
    query: str,
    batch: int = 0,
    task: int = 0,
    by_id: bool = False,
    **options: Any,
) -> TaskWriter:
    wanted = WriteOptions(Brokers("unused:9092"), topic, **options)
    return TaskWriter(client, Attempt(query, batch, task), wanted, by_id=by_id)


def committed(
    client: KafkaClient, topic: str, ends: dict[Any, int], *, batch: int, term: int | None = None
) -> None:
    """Commits the end of a micro-batch as the sink does."""
    marks = marks_after(client.committed(group_of(topic)), ends, batch=batch, term=term)
    client.commit(group_of(topic), ends, metadata={key: str(one) for key, one in marks.items()})


def cut(numbers: list[int], chance: random.Random) -> Iterator[list[int]]:
    """The numbers in order, in pieces of any size."""
    at = 0
    while at < len(numbers):
        size = chance.randint(1, 200)
        yield numbers[at : at + size]
        at += size


def check_once(client: KafkaClient, topic: str, count: int) -> None:
    """Every number is there once, and the numbers of a key are in order."""
    rows = rows_of(client, topic)
    assert sorted(int(row["value"]) for row in rows) == list(range(count))
    for key in {row["key"] for row in rows}:
        values = [int(row["value"]) for row in rows if row["key"] == key]
        assert values == sorted(values)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_writes_is_read(node: RunningNode, client: KafkaClient, codec: str) -> None:
    """T9: keys, values, headers, nulls and times of a foreign producer, in every codec; keys lie
    where we would put them."""
    topic = new_topic(node)
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "compression.type": codec,
            "partitioner": "murmur2_random",
        }
    )
    for n in range(500):
        producer.produce(
            topic,
            key=f"k{n}",
            value=None if n % 7 == 0 else b"v" * n,
            headers=[("a", b"%d" % n), ("b", None)] if n % 3 == 0 else None,
            timestamp=1_700_000_000_000 + n,
        )
    assert producer.flush(30) == 0
    rows = {row["key"]: row for row in rows_of(client, topic)}
    assert len(rows) == 500
    for n in range(500):
        row = rows[b"k%d" % n]
        assert row["value"] == (None if n % 7 == 0 else b"v" * n)
        pairs = [(pair["key"], pair["value"]) for pair in row["headers"]]
        assert pairs == ([("a", b"%d" % n), ("b", None)] if n % 3 == 0 else [])
        assert round(row["timestamp"].timestamp() * 1000) == 1_700_000_000_000 + n
    keys = [f"k{n}" for n in range(500)]
    task = writer(client, again := new_topic(node))
    task.write(pa.record_batch({"key": pa.array(keys), "value": pa.array(keys)}))
    task.close()
    ours = {row["key"]: row["partition"] for row in rows_of(client, again)}
    assert ours == {key: row["partition"] for key, row in rows.items()}


@pytest.mark.parametrize("seed", range(6))
def test_attempts_that_die_leave_each_row_once(client: KafkaClient, topic: str, seed: int) -> None:
    """T5: by position: attempts end anywhere, cut rows otherwise, and the last one completes."""
    chance = random.Random(seed)
    batch_bytes = chance.choice([200, 2_000, 950_000])
    numbers = list(range(1_500))
    for attempt in range(4):
        task = writer(client, topic, batch_bytes_max=batch_bytes)
        give_up = chance.randint(0, 1_500) if attempt < 3 else None
        done = 0
        for piece in cut(numbers, chance):
            if give_up is not None and done >= give_up:
                task.close()
                break
            task.write(table(piece))
            done += len(piece)
        else:
            task.close()
    check_once(client, topic, 1_500)


@pytest.mark.parametrize("seed", range(4))
def test_rows_without_keys_for_several_topics_keep_their_places(
    node: RunningNode, client: KafkaClient, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: by position: where a row goes does not depend on how its attempt's rows are cut."""
    monkeypatch.setattr(writing, "RUN_ROWS", 7)
    chance = random.Random(seed)
    topics = [new_topic(node), new_topic(node)]
    query = topics[0]
    for attempt in range(3):
        task = writer_to(client, None, query=query)
        pieces = list(cut(list(range(900)), chance))
        if attempt < 2:
            pieces = pieces[: chance.randint(0, len(pieces))]
        for piece in pieces:
            columns = {
                "value": pa.array([b"%d" % n for n in piece], pa.binary()),
                "topic": pa.array([topics[n % 3 == 0] for n in piece]),
            }
            task.write(pa.record_batch(columns))
        task.close()
    for number, topic in enumerate(topics):
        found = sorted(int(row["value"]) for row in rows_of(client, topic))
        assert found == [n for n in range(900) if (n % 3 == 0) == bool(number)]


@pytest.mark.parametrize("seed", range(4))
def test_twins_that_write_at_once_write_each_row_once(
    node: RunningNode, client: KafkaClient, topic: str, seed: int
) -> None:
    """T5: by position: a paused attempt, a speculative one, an old master: all at the same time."""
    numbers = list(range(3_000))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        chance = random.Random(seed * 10 + number)
        mine = KafkaClient(Brokers(node.bootstrap), timeout_s=30)
        task = writer(mine, topic, batch_bytes_max=3_000)
        try:
            for piece in cut(numbers, chance):
                task.write(table(piece))
            task.close()
        except BaseException as error:
            failures.append(error)
        finally:
            mine.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    check_once(client, topic, 3_000)


@pytest.mark.parametrize("seed", range(6))
def test_rows_with_ids_may_come_in_any_order(client: KafkaClient, topic: str, seed: int) -> None:
    """T5: by id: each attempt has its own order, its own tasks and its own cuts."""
    chance = random.Random(seed)
    for attempt in range(4):
        numbers = list(range(600))
        chance.shuffle(numbers)
        tasks = chance.randint(1, 3)
        for number in range(tasks):
            task = writer(client, topic, task=number, by_id=True)
            pieces = list(cut(numbers[number::tasks], chance))
            if attempt < 3:
                pieces = pieces[: chance.randint(0, len(pieces))]
            for piece in pieces:
                task.write(table(piece, ids=True))
            task.close()
    rows = rows_of(client, topic)
    assert sorted(int(row["value"]) for row in rows) == list(range(600))
    for row in rows:
        pair = {"key": ID_HEADER, "value": b"id" + row["value"]}
        assert row["headers"] == [pair]


def test_twins_with_ids_lose_and_double_nothing(node: RunningNode, client: KafkaClient) -> None:
    """T5: by id: two attempts at once; whoever is disturbed too often fails and is run again."""
    topic = new_topic(node, partitions=1)
    done = []

    def run(number: int) -> None:
        chance = random.Random(number)
        mine = KafkaClient(Brokers(node.bootstrap), timeout_s=30)
        numbers = list(range(800))
        chance.shuffle(numbers)
        for _ in range(5):
            task = writer(mine, topic, by_id=True)
            try:
                for piece in cut(numbers, chance):
                    task.write(table(piece, ids=True))
                task.close()
                done.append(number)
                break
            except writing.Uncertain:
                task.close()
        mine.close()

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done
    assert sorted(int(row["value"]) for row in rows_of(client, topic)) == list(range(800))


def test_an_answer_that_was_meant_for_another_is_noticed(
    node: RunningNode, client: KafkaClient
) -> None:
    """T5: by id: two attempts send as many rows under the same numbers; the second one sees that
    its rows are not there, and writes them behind the other's."""
    topic = new_topic(node, partitions=1)
    attempts = [writer(client, topic, by_id=True) for _ in range(2)]
    for attempt in attempts:
        attempt._read_back([(topic, 0)])
    attempts[0].write(table(list(range(10)), ids=True))
    attempts[1].write(table(list(range(5, 15)), ids=True))
    for attempt in attempts:
        attempt.close()
    assert [int(row["value"]) for row in rows_of(client, topic)] == list(range(15))


def test_a_broker_that_sets_the_time_is_no_other_attempt(
    node: RunningNode, client: KafkaClient
) -> None:
    """T5: by id: rows are recognised as one's own although the header of their batch was
    rewritten, and nothing is read back."""
    config = {"message.timestamp.type": "LogAppendTime"}
    topic = new_topic(node, partitions=1, config=config)
    task = writer(client, topic, by_id=True)
    for at in range(0, 30, 10):
        task.write(table(list(range(at, at + 10)), ids=True))
    task.close()
    assert not task._known
    rows = rows_of(client, topic)
    assert [int(row["value"]) for row in rows] == list(range(30))
    assert {row["timestampType"] for row in rows} == {1}


@pytest.mark.parametrize("conflicts_fail", [False, True])
def test_an_attempt_that_decided_otherwise_changes_nothing(
    node: RunningNode, client: KafkaClient, conflicts_fail: bool
) -> None:
    """T5: by id: a paused attempt wakes up with other values for rows that are stored. It fails
    before it writes what would follow from them, where that is asked for."""
    topic = new_topic(node, partitions=1)
    late, early = (
        writer(client, topic, by_id=True, conflicts_fail=conflicts_fail) for _ in range(2)
    )
    late._read_back([(topic, 0)])
    rows = table(list(range(10)), ids=True)
    early.write(rows)
    early.close()
    others = rows.set_column(1, "value", pa.array([b"%d" % (n + n // 7) for n in range(10)]))
    if conflicts_fail:
        with pytest.raises(writing.Uncertain, match="other values for 3 rows"):
            late.write(others)
        late.close()
    else:
        late.write(others)
        late.close()
    assert [int(row["value"]) for row in rows_of(client, topic)] == list(range(10))


def test_an_earlier_micro_batch_is_refused(client: KafkaClient, topic: str) -> None:
    """T2, T5: what wakes up after the next micro-batch began can write no more, by the broker."""
    rows = table(list(range(50)))
    late = writer(client, topic, batch=3)
    late.write(rows)
    following = writer(client, topic, batch=4)
    following.write(rows)
    following.close()
    with pytest.raises(ProducerFenced, match="INVALID_PRODUCER_EPOCH"):
        late.write(rows)
    late.close()
    assert len(rows_of(client, topic)) == 100


def test_a_master_of_an_older_term_is_refused(client: KafkaClient, topic: str) -> None:
    """T2: once a newer master committed, one of an older term does not even begin."""
    committed(client, topic, {(topic, 0): 0}, batch=7, term=5)
    with pytest.raises(ProducerFenced, match="term 4 writes, but one of term 5"):
        writer(client, topic, batch=7, term=4)
    with pytest.raises(ProducerFenced, match="micro-batch 6 is written again, but 7 is complete"):
        writer(client, topic, batch=6, term=5)
    with pytest.raises(ProducerFenced, match="but 7 is complete"):
        committed(client, topic, {(topic, 1): 9}, batch=6)
    writer(client, topic, batch=7, term=5).close()


def test_reading_back_begins_where_the_last_micro_batch_ended(
    client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T5: a repaired micro-batch reads what came behind the commit, not the whole topic."""
    first = writer(client, topic, batch=0)
    first.write(table(list(range(100))))
    ends = first.close()
    committed(client, topic, ends, batch=0)
    cut_short = writer(client, topic, batch=1)
    cut_short.write(table(list(range(100, 160))))
    cut_short.close()
    starts = []

    def watched(client: KafkaClient, place: Any, start: int, end: int) -> Any:
        starts.append((place, start))
        return fetch(client, place, start, end)

    monkeypatch.setattr(writing, "fetch", watched)
    again = writer(client, topic, batch=1)
    again.write(table(list(range(100, 200))))
    again.close()
    assert starts
    assert all(start >= ends[place] for place, start in starts)
    check_once(client, topic, 200)


@pytest.mark.parametrize("by_id", [False, True])
def test_a_micro_batch_that_was_committed_by_the_sink_alone_is_run_again(
    node: RunningNode, client: KafkaClient, topic: str, by_id: bool
) -> None:
    """T2, T5: the old master died between the sink's commit and Spark's: the positions lie behind
    the rows, and its successor finds them all the same."""
    for batch in (3, 4):
        first = writer(client, topic, batch=batch, by_id=by_id)
        first.write(table(list(range(batch * 100, batch * 100 + 100)), ids=by_id))
        ends = first.close()
        committed(client, topic, ends, batch=batch)
    impatient = KafkaClient(Brokers(node.bootstrap), timeout_s=1)
    again = writer(impatient, topic, batch=4, by_id=by_id)
    for piece in (list(range(400, 430)), list(range(430, 500))):
        again.write(table(piece, ids=by_id))
    again.close()
    impatient.close()
    values = sorted(int(row["value"]) for row in rows_of(client, topic))
    assert values == list(range(300, 500))


def test_a_node_that_dies_in_the_middle_loses_and_doubles_nothing(
    node_factory: NodeFactory,
) -> None:
    """T5: kill -9 of the broker while a task writes; the task waits, and goes on."""
    node = node_factory()
    topic = new_topic(node)
    client = KafkaClient(Brokers(node.bootstrap), timeout_s=60)
    task = writer(client, topic, batch_bytes_max=5_000)
    reached, ended = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            for at in range(0, 20_000, 500):
                task.write(table(list(range(at, at + 500))))
                if at >= 5_000:
                    reached.set()
            task.close()
        except BaseException as error:
            failures.append(error)
        finally:
            reached.set()
            ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert reached.wait(60)
    assert not ended.is_set()
    node.kill()
    node.start()
    assert ended.wait(60)
    thread.join()
    assert not failures
    check_once(client, topic, 20_000)
    client.close()


def test_errors_name_what_is_wrong(node: RunningNode, client: KafkaClient, topic: str) -> None:
    """T9: an unknown topic, an offset that is not there, a partition that is not there, nobody
    at the address."""
    with pytest.raises(TopicUnknown, match="'no-such'"):
        client.partitions(["no-such"])
    with pytest.raises(OffsetOutOfRange, match="it holds 0 to 0"):
        next(fetch(client, (topic, 0), 5, 9))
    columns = {"value": pa.array(["x"]), "partition": pa.array([PARTITIONS], pa.int32())}
    with pytest.raises(InvalidInput, match="has partitions 0 to 2"):
        writer(client, topic).write(pa.record_batch(columns))
    with pytest.raises(InvalidInput, match="a row has no topic"):
        nowhere = writer_to(client, None, query="q")
        nowhere.write(
            pa.record_batch({"value": pa.array(["x"]), "topic": pa.array([None], "string")})
        )
    with pytest.raises(Unavailable, match=r"no broker answers: broker 127.0.0.1:1.*after 0.1 s"):
        KafkaClient(Brokers("127.0.0.1:1"), timeout_s=0.1).partitions(None)
