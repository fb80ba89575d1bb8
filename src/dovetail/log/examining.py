"""Checks batches of clients before they are appended, and keeps them in order.

A plain batch is checked at once, which takes microseconds. A batch goes through a thread if it must
be decompressed, is very large, or is subject to the topic's settings (`admission.py`); so does
every batch for the same partition that arrives while one is there. The thread takes them in turn
and its answers reach the event loop in turn, so none overtakes another.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dovetail.errors import DovetailError, InvalidBatch
from dovetail.log.open_ledger import Appended, copy_outcome
from dovetail.log.partition import Partition
from dovetail.logging import get_logger
from dovetail.record_batch import CODEC_MASK, BatchHeader
from dovetail.record_check import check_records

_log = get_logger("log")

#: A plain batch of so many bytes takes a millisecond if its records are as small as can be.
AT_ONCE_BYTES = 1024 * 1024 + 1024

#: A batch and its header.
Batch = tuple[memoryview, BatchHeader]
Admit = Callable[[memoryview, BatchHeader], Batch]
Store = Callable[[memoryview, BatchHeader], "asyncio.Future[Appended]"]


class Examiner:
    """Examines the batches for the partitions of one broker."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log/examine")
        #: Batches in the thread, by partition.
        self._pending: Counter[Partition] = Counter()

    def append(
        self,
        partition: Partition,
        batch: memoryview,
        header: BatchHeader,
        *,
        admit: Admit | None,
        store: Store,
    ) -> "asyncio.Future[Appended]":
        """Stores the batch by `store` if it is sound; else the future says what is wrong with it.

        A topic that is compacted asks for a key of every record. `admit` says what is stored
        instead, if the topic's settings have a say. Raises `InvalidBatch` at once where it can be
        seen at once.
        """
        slow = admit is not None or header.attributes & CODEC_MASK or len(batch) > AT_ONCE_BYTES
        if not slow and partition not in self._pending:
            check_records(batch, header, keyed=partition.config.compacts)
            return store(batch, header)

        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Appended] = loop.create_future()
        self._pending[partition] += 1
        work = self._thread.submit(_examine, batch, header, admit, partition.config.compacts)
        work.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._examined, partition, outcome, done, store)
        )
        return outcome

    def _examined(
        self,
        partition: Partition,
        outcome: "asyncio.Future[Appended]",
        done: "Future[Batch]",
        store: Store,
    ) -> None:
        self._pending[partition] -= 1
        if not self._pending[partition]:
            del self._pending[partition]
        try:
            appended = store(*done.result())
        except DovetailError as error:
            outcome.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - a codec may raise anything for what it gets
            _log.exception("cannot check a batch: internal error", error, partition=partition.name)
            outcome.set_exception(InvalidBatch(f"cannot check the batch: {error!r}"))
        else:
            appended.add_done_callback(lambda first: copy_outcome(first, outcome))

    async def close(self) -> None:
        """Ends with what it has; partitions that are closed by then refuse it."""
        await asyncio.to_thread(self._thread.shutdown)


def _examine(
    batch: memoryview,
    header: BatchHeader,
    admit: Admit | None,
    keyed: bool,
) -> Batch:
    check_records(batch, header, keyed=keyed)
    return (batch, header) if admit is None else admit(batch, header)
