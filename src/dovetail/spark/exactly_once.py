"""Exactly one outcome: the fields of a record batch tell the broker which task writes which row.

The problem. Spark runs the same micro-batch again after a task failed, after the driver restarted
and after a new master took over, while an older attempt may still be running. What one attempt
wrote must not be written again, and what it did not write must be.

The choice. A broker accepts a batch of an idempotent producer only if its sequence number follows
the last one of that producer and epoch in that partition; it answers a repeated batch as if it
were new, and refuses an older epoch: a compare-and-set on the partition. So a record's place in the
micro-batch *is* its sequence number:

    producer id   the query (its id is in the checkpoint) and the number of the task
    epoch         the number of the micro-batch
    sequence      the row's number among those that this task sends to this partition

The argument, for rows that are the same in every run (`by position`):
- *Nothing doubled.* Each sequence number of a producer and epoch is stored at most once, whoever
  sends it: a retry, a speculative twin, a restarted driver, two masters at once.
- *Nothing lost.* A task succeeds only when the last of its rows is acknowledged, and the number of
  a row is stored only after all before it.
- *Old attempts are refused.* Once a partition has a batch of micro-batch n, everything of n-1 has a
  lower epoch and is refused. Before that, all sequence numbers of n-1 are taken, because Spark
  begins n only when n-1 is complete. A superseded master cannot begin n+1 at all: the offset log
  in the checkpoint has one entry n+1, and the first to create it wins.
- *Nothing to remember.* A micro-batch starts its own count at 0; no state passes from one to the
  next, and in the ordinary case nothing is read. A task that finds its first number taken reads
  back the headers of the batches behind the last committed position, and continues after its
  predecessor's last row.

Rows that come in another order or number when they are computed again (behind a shuffle, or made by
a function that may fail this time) have no such place. For them there is the column `id` (`by id`):
the id goes into the record's header `dovetail-id`. Every attempt first reads back what this
micro-batch has written, whichever task wrote it, leaves those rows out, and appends the rest behind
the last sequence number it saw: the broker refuses it if another attempt wrote meanwhile. One case
is left: both send as many rows under the same numbers, and the broker answers the second as if its
rows were stored. So what was acknowledged is fetched and compared before anything else is written;
what turns out to be another attempt's is read back, and the rest is sent again. No attempt needs to
know whether it is alone, and no clock is involved: it may sleep at any line and wake up next day.

Rows that follow from other rows (a team's dead letters and new jobs follow from outcomes) need
more: an attempt that has another value for a stored row must not write what would follow from its
own. With the option `idConflict=fail` it fails at that row, before it goes on to the next topic;
its next run can begin from what is stored.

Where reading back begins. After each micro-batch the sink commits where it ended, and beside each
position a mark: the micro-batch, the master's term, and where the micro-batch began. Spark commits
after the sink. A master that dies between the two leaves positions *behind* rows that the next
master looks for; the mark says so, and the next master begins where the micro-batch began. A mark
of a later micro-batch or of a newer term says that another master went on: the old one stops there.

Assumptions. The broker remembers a producer for a day (Kafka's default too): nothing refuses an
attempt that was paused for longer. The checkpoint is on a file system that creates files
atomically. For rows by position, the plan does not change between a failure and the run that
repairs it. Nothing here is an extension: a plain Kafka has the same rules for ids, epochs and
sequences (not tried on one yet).

Epochs have 15 bits. Every 32,768 micro-batches the producer id changes and the epoch returns to 0;
the argument above does not need both to belong to one producer, except for refusing n-1 early.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dovetail.errors import InvalidInput, ProducerFenced
from dovetail.kafka.client.client import Partition

#: Set in all our producer ids: brokers hand out small numbers, from 0 up.
_OURS = 1 << 62
_TASK_BITS = 20
_EPOCH_BITS = 15

#: The header that carries a row's id.
ID_HEADER = "dovetail-id"

#: Positions of the end of each micro-batch are committed to this group: where reading back begins.
GROUP_PREFIX = "dovetail-sink-"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a task of a micro-batch; a second run of the same task is equal to it."""

    query: str
    batch: int
    task: int


def attempt_of_task() -> Attempt | None:
    """The task that this process of Spark runs; None outside of a stream."""
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return None
    query = task.getLocalProperty("sql.streaming.queryId")
    batch = task.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        return None
    return Attempt(query, int(batch), task.partitionId())


@dataclass(frozen=True, slots=True)
class Identity:
    """What a task puts into its record batches."""

    producer_id: int
    epoch: int

    def wrote(self, *, producer_id: int, epoch: int) -> bool:
        """Whether a batch is of this task, in any of its attempts."""
        return (producer_id, epoch) == (self.producer_id, self.epoch)

    def shares_batch(self, *, producer_id: int, epoch: int) -> bool:
        """Whether a batch is of any task of the same micro-batch."""
        same_query = producer_id >> _TASK_BITS == self.producer_id >> _TASK_BITS
        return same_query and epoch == self.epoch


def identity_of(attempt: Attempt) -> Identity:
    """The identity of a task of a micro-batch. Raises `InvalidInput`."""
    task = attempt.task
    if not 0 <= task < 1 << _TASK_BITS:
        raise InvalidInput(f"task {task}; a stage that writes has up to {1 << _TASK_BITS} tasks")

    era, epoch = divmod(attempt.batch, 1 << _EPOCH_BITS)
    digest = hashlib.blake2b(f"{attempt.query}/{era}".encode(), digest_size=8).digest()
    query_bits = int.from_bytes(digest, "big") % (1 << 62 - _TASK_BITS)
    return Identity(_OURS | query_bits << _TASK_BITS | task, epoch)


def group_of(query: str) -> str:
    """The group that holds where the query's last complete micro-batch ended."""
    return GROUP_PREFIX + query


@dataclass(frozen=True, slots=True)
class Mark:
    """What is stored beside a position: which micro-batch ended there, and where it began.

    It began behind `begin`, the position of the one before; -1: not known.
    """

    batch: int = -1
    term: int = -1
    begin: int = 0

    @classmethod
    def of(cls, text: str) -> "Mark":
        """Parses the text beside a position; unknown words are skipped."""
        words = dict(word.partition("=")[::2] for word in text.split())
        return cls(
            **{name: int(words[name]) for name in ("batch", "term", "begin") if name in words}
        )

    def __str__(self) -> str:
        return f"batch={self.batch} begin={self.begin} term={self.term}"


def check_current(marks: Iterable[Mark], *, batch: int, term: int | None) -> None:
    """Raises `ProducerFenced` if a later micro-batch or a master of a newer term has committed."""
    for one in marks:
        if term is not None and one.term > term:
            raise ProducerFenced(
                f"the master of term {term} writes, but one of term {one.term} has committed"
            )
        if one.batch > batch:
            raise ProducerFenced(
                f"micro-batch {batch} is written again, but {one.batch} is complete: another "
                "master runs this query, or its checkpoint is an old copy"
            )


def begin_of(stored: tuple[int, str] | None, *, batch: int) -> int:
    """The offset before which a micro-batch has written nothing; `stored` is the partition's entry.

    A position of this very micro-batch lies behind its rows: the sink commits before Spark, and a
    master that died in between left it.
    """
    if stored is None:
        return 0
    position, text = stored
    one = Mark.of(text)
    return one.begin if one.batch == batch else position


def marks_after(
    stored: Mapping[Partition, tuple[int, str]],
    ends: Mapping[Partition, int],
    *,
    batch: int,
    term: int | None,
) -> dict[Partition, Mark]:
    """What to store beside the ends of a micro-batch. Raises `ProducerFenced`."""
    check_current((Mark.of(text) for _, text in stored.values()), batch=batch, term=term)
    return {
        partition: Mark(batch, -1 if term is None else term, begin_of(place, batch=batch))
        for partition in ends
        for place in [stored.get(partition)]
    }
