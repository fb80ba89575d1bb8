"""An application that consumes, transforms and produces in transactions, and starts anew at need.

It does what Kafka's documents tell applications to do: abort after what can be aborted, repeat a
commit whose answer was lost, and begin with a new producer after everything else.

Without progress it is given up and begun anew, as whoever supervises such an application does:
librdkafka waits without end in `send_offsets_to_transaction` for a group's coordinator that has
left the cluster (its issue 5511). The new life fences off the one that hangs.
"""

import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.error import KafkaError

WAIT_S = 60.0
_STILL_S = 8.0
_AT_ONCE = 5


class Transformer:
    """Each record of `source` goes to `target` once; positions are committed with the records."""

    def __init__(self, bootstrap: str, source: str, target: str, *, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._target = target
        self._partitions = partitions
        self._life = 0
        self._ended = threading.Event()
        self.done = 0
        self.failures: list[str] = []

    def start(self) -> None:
        self._life += 1
        self._thread = threading.Thread(target=self._run, args=(self._life,), daemon=True)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Waits until so many records are done in this or earlier transactions."""
        deadline = time.monotonic() + WAIT_S
        seen, since = self.done, time.monotonic()
        while self.done < count:
            if self.done != seen:
                seen, since = self.done, time.monotonic()
            elif time.monotonic() - since > _STILL_S:
                self.failures.append(f"no progress after {seen}")
                self.start()
                since = time.monotonic()
            assert time.monotonic() < deadline, f"{self.done} of {count} done: {self.failures[-3:]}"
            time.sleep(0.02)

    def finish(self) -> None:
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the application does not end"

    def _lives(self, life: int) -> bool:
        return life == self._life and not self._ended.is_set()

    def _run(self, life: int) -> None:
        while self._lives(life):
            consumer = Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": f"{self._source}-to-{self._target}",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
            try:
                self._work(consumer, life)
            except KafkaException as error:
                self.failures.append(str(error))
            finally:
                consumer.close()

    def _work(self, consumer: Consumer, life: int) -> None:
        """One producer's life."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"{self._source}-to-{self._target}",
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        place = TopicPartition(self._source, 0)
        at = max(0, consumer.committed([place], WAIT_S)[0].offset)
        consumer.assign([TopicPartition(self._source, 0, at)])
        self.done = at

        while self._lives(life):
            messages = [one for one in consumer.consume(_AT_ONCE, 0.5) if one.error() is None]
            if not messages:
                continue
            producer.begin_transaction()
            for one in messages:
                number = (one.offset() or 0) % self._partitions
                producer.produce(self._target, one.value(), partition=number)
            behind = (messages[-1].offset() or 0) + 1
            producer.send_offsets_to_transaction(
                [TopicPartition(self._source, 0, behind)],
                consumer.consumer_group_metadata(),
                WAIT_S,
            )
            self._commit(producer)
            self.done = behind

    def _commit(self, producer: Producer) -> None:
        while True:
            try:
                producer.commit_transaction(WAIT_S)
                return
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not cause.retriable():
                    raise
