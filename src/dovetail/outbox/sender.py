"""Sending batches under sequence numbers that were chosen beforehand.

An ordinary producer chooses its numbers in memory, and a restart begins with others, so the broker
cannot know a batch again. Here the numbers are written down with the batch (`batch.py`) and put
into the record batches by hand. aiokafka gives what that needs: a client that finds
leaders, with TLS and login, and a builder of record batches.

Promise: an outcome of `ACKNOWLEDGED` means that all replicas asked for have it. A lost answer, a
moved leader or a broker that is starting is tried again, with the same bytes, until `delivery_ms`
have passed; then the outcome is `FAILED`, which says nothing about whether it was stored.

One event loop in a thread of its own serves all workers of a relay.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dovetail.errors import InvalidSetting, Unavailable
from dovetail.outbox.batch import Batch, Identity, Row
from dovetail.outbox.drain import Fate, Outcome
from dovetail.outbox.message import MESSAGE_ID_HEADER, headers_from_text
from dovetail.outbox.spans import follow

#: Record batches are built for any size: the groups are cut before (`drain`), and what is too large
#: is for the broker to say.
_BATCH_BYTES_MAX = 1 << 30
#: Time that an answer may take before it is asked for again.
REQUEST_MS = 15_000
#: Time that a topic may take to appear: one that is not there must not hold up the others.
METADATA_MS = 5_000
#: Between two attempts; a leader moves within a few of them.
RETRY_MS = 100

#: What no attempt will change: the record batch as it is will never be taken.
_REFUSED = {
    2: "corrupt message",
    10: "message too large",
    18: "record list too large",
    32: "invalid timestamp",
    43: "unsupported for message format",
    76: "unsupported compression",
    87: "invalid record",
}
#: The broker does not know the producer, or knows later numbers.
_FORGOTTEN = {45: "out of sequence", 47: "old epoch", 59: "unknown producer"}
#: A batch that the broker has, and whose offset it has forgotten.
_DUPLICATE = 46
#: What another attempt cannot heal soon: not allowed, no such topic, policy.
_FINAL = {17, 29, 31, 44}

_T = TypeVar("_T")


class Sender(Protocol):
    """What a worker needs of a Kafka; the real one and a model in the tests."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises `Unavailable`."""
        ...

    def new_identity(self) -> Identity:
        """A producer that nobody had before. Raises `Unavailable`."""
        ...

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        """Sends, once `after` is acknowledged in full; else everything is `SKIPPED`."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the Kafka is, and how to log in."""

    bootstrap: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca_file: str | None = None

    def arguments(self) -> dict[str, Any]:
        """As aiokafka wants them."""
        given: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            given |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        if self.security_protocol.endswith("SSL"):
            import ssl

            given["ssl_context"] = ssl.create_default_context(cafile=self.ssl_ca_file)
        return given


def encode(rows: Sequence[Row], *, producer_id: int, epoch: int, sequence: int) -> bytes:
    """The rows as one record batch. The same rows and numbers are the same batch to a broker."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=_BATCH_BYTES_MAX,
    )
    append = builder.append
    for offset, row in enumerate(rows):
        headers = [(MESSAGE_ID_HEADER, row.message_id.encode())]
        if row.headers is not None:
            headers += headers_from_text(row.headers)  # type: ignore[arg-type] # None is a value.
        append(offset, row.created_ms, row.key, row.payload, headers)
    return bytes(builder.build())


class KafkaSender:
    """The real one. `close` ends its thread."""

    def __init__(self, connection: Connection, *, delivery_ms: int) -> None:
        try:
            import aiokafka.client  # noqa: F401 - fails here, and not in a thread
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                "the relay needs aiokafka; pip install 'dovetail[outbox]'"
            ) from error
        self._connection = connection
        self._delivery_ms = delivery_ms
        self._client: Any = None
        self._connecting: asyncio.Lock | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="outbox-sender", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes the connections; what is on its way is given up."""
        if self._loop.is_closed():
            return
        self._call(self._disconnect()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def partitions(self, topic: str) -> int:
        return self._call(self._partitions(topic)).result()

    def new_identity(self) -> Identity:
        return self._call(self._new_identity()).result()

    def send(
        self, topic: str, batch: Batch, sets: dict[int, list[Row]], after: "Future[Any] | None"
    ) -> "Future[dict[int, Outcome]]":
        encoded = {
            partition: encode(
                rows,
                producer_id=batch.producer_id,
                epoch=batch.epoch,
                sequence=batch.first_by_partition[partition],
            )
            for partition, rows in sets.items()
        }
        sent = self._call(self._send(topic, encoded, after))
        follow(sent, topic, sets)
        return sent

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    def _call(self, work: "Coroutine[Any, Any, _T]") -> "Future[_T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _disconnect(self) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self) -> Any:
        """The client, made at the first use. Raises `Unavailable`."""
        from aiokafka.client import AIOKafkaClient
        from aiokafka.errors import KafkaError

        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._client is None:
                client = AIOKafkaClient(
                    client_id="dovetail-outbox",
                    request_timeout_ms=REQUEST_MS,
                    retry_backoff_ms=RETRY_MS,
                    **self._connection.arguments(),
                )
                try:
                    await client.bootstrap()
                except KafkaError as error:
                    await client.close()
                    raise Unavailable(
                        f"no Kafka answers at {self._connection.bootstrap}: {error}"
                    ) from error
                self._client = client
        return self._client

    async def _partitions(self, topic: str) -> int:
        from aiokafka.errors import KafkaError

        client = await self._connected()
        try:
            found = await asyncio.wait_for(client._wait_on_metadata(topic), METADATA_MS / 1000)
        except (KafkaError, TimeoutError) as error:
            raise Unavailable(
                f"topic {topic!r} is not there on {self._connection.bootstrap}: "
                f"{error or type(error).__name__}"
            ) from error
        return len(found)

    async def _new_identity(self) -> Identity:
        from aiokafka.errors import KafkaError, for_code
        from aiokafka.protocol.transaction import InitProducerIdRequest

        client = await self._connected()
        try:
            node = client.get_random_node()
            answer = await client.send(
                node, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            )
        except KafkaError as error:
            raise Unavailable(
                f"no producer id from {self._connection.bootstrap}: {error}"
            ) from error
        if answer.error_code != 0:
            raise Unavailable(
                f"no producer id from {self._connection.bootstrap}: {for_code(answer.error_code)()}"
            )
        return Identity(answer.producer_id, answer.producer_epoch)

    async def _send(
        self, topic: str, encoded: dict[int, bytes], after: "Future[Any] | None"
    ) -> dict[int, Outcome]:
        if after is not None:
            before = await asyncio.wrap_future(after)
            if any(outcome.fate is not Fate.ACKNOWLEDGED for outcome in before.values()):
                return {partition: Outcome(Fate.SKIPPED, "not sent") for partition in encoded}
        settled: dict[int, Outcome] = {}
        last: dict[int, str] = {}
        deadline = self._loop.time() + self._delivery_ms / 1000
        while len(settled) < len(encoded):
            left = {part: data for part, data in encoded.items() if part not in settled}
            for partition, answer in (await self._attempt(topic, left)).items():
                if isinstance(answer, Outcome):
                    settled[partition] = answer
                else:
                    last[partition] = answer
            if len(settled) < len(encoded):
                if self._loop.time() >= deadline:
                    for partition in left.keys() - settled.keys():
                        settled[partition] = Outcome(Fate.FAILED, last[partition])
                    break
                await asyncio.sleep(RETRY_MS / 1000)
        return settled

    async def _attempt(self, topic: str, encoded: dict[int, bytes]) -> dict[int, Outcome | str]:
        """One request to each leader; a text says why to try again."""
        from aiokafka.structs import TopicPartition

        try:
            client = await self._connected()
        except Unavailable as error:
            return dict.fromkeys(encoded, str(error))
        by_leader: dict[int | None, dict[int, bytes]] = {}
        for partition, data in encoded.items():
            leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
            known = None if leader is None or leader == -1 else leader
            by_leader.setdefault(known, {})[partition] = data
        answers: dict[int, Outcome | str] = {}
        for partition in by_leader.pop(None, {}):
            answers[partition] = f"no leader of partition {partition} is known"
        if answers:
            await self._refresh(client)
        asked = [
            self._ask(client, leader, topic, part)
            for leader, part in by_leader.items()
            if leader is not None
        ]
        for found in await asyncio.gather(*asked):
            answers |= found
        return answers

    async def _ask(
        self, client: Any, leader: int, topic: str, encoded: dict[int, bytes]
    ) -> dict[int, Outcome | str]:
        from aiokafka.errors import KafkaError, for_code
        from aiokafka.protocol.produce import ProduceRequest

        request = ProduceRequest(
            required_acks=-1,
            timeout=REQUEST_MS,
            topics=[(topic, list(encoded.items()))],
            transactional_id=None,
        )
        try:
            answer = await client.send(leader, request)
        except KafkaError as error:
            await self._refresh(client)
            return dict.fromkeys(encoded, str(error))
        answers: dict[int, Outcome | str] = {}
        for _, partitions in answer.topics:
            for partition, code, *_rest in partitions:
                found = _outcome_of(code, str(for_code(code)()))
                answers[partition] = found
        if any(isinstance(found, str) for found in answers.values()):
            await self._refresh(client)
        return answers

    async def _refresh(self, client: Any) -> None:
        await client.force_metadata_update()


def _outcome_of(code: int, told: str) -> Outcome | str:
    """What an error code means; a text says why to try again."""
    if code in {0, _DUPLICATE}:
        return Outcome(Fate.ACKNOWLEDGED)
    if code in _REFUSED:
        return Outcome(Fate.REFUSED, f"{_REFUSED[code]} (error {code})")
    if code in _FORGOTTEN:
        return Outcome(Fate.FORGOTTEN, f"{_FORGOTTEN[code]} (error {code})")
    if code in _FINAL:
        return Outcome(Fate.FAILED, told)
    return told
