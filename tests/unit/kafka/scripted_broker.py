"""A broker that answers what a test tells it to: for each Produce to a partition the next code."""

import socketserver
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import decode_request, encode_response
from dovetail.record_batch import read_header

#: In place of a code: the connection ends without an answer.
HANG_UP = None


class ScriptedBroker:
    """One broker with one topic of `partitions`; success where the script says nothing."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.script: dict[int, list[ErrorCode | None]] = defaultdict(list)
        #: The first sequence number of every batch that came, by partition.
        self.came: dict[int, list[int]] = defaultdict(list)
        self.address = ("", 0)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def answer(self, key: int, body: Any) -> Any:
        """The body of the response; None to hang up."""
        if key == ApiKey.METADATA:
            return self._metadata(body)
        if key == ApiKey.INIT_PRODUCER_ID:
            return m.InitProducerIdResponse(error_code=0, producer_id=7, producer_epoch=3)
        assert key == ApiKey.PRODUCE
        (topic,) = body.topic_data
        (partition,) = topic.partition_data
        self.came[partition.index].append(read_header(partition.records).base_sequence)
        script = self.script[partition.index]
        code = script.pop(0) if script else ErrorCode.NONE
        if code is HANG_UP:
            return None
        outcome = m.ProduceResponsePartition(
            index=partition.index, error_code=code, base_offset=0 if not code else -1
        )
        answered = m.ProduceResponseTopic(name=topic.name, partition_responses=(outcome,))
        return m.ProduceResponse(responses=(answered,))

    def _metadata(self, body: m.MetadataRequest) -> m.MetadataResponse:
        host, port = self.address
        partitions = tuple(
            m.MetadataResponsePartition(
                error_code=0,
                partition_index=number,
                leader_id=1,
                replica_nodes=(1,),
                isr_nodes=(1,),
            )
            for number in range(self.partitions)
        )
        topics = tuple(
            m.MetadataResponseTopic(error_code=0, name=topic.name, partitions=partitions)
            for topic in body.topics or ()
        )
        broker = m.MetadataResponseBroker(node_id=1, host=host, port=port)
        return m.MetadataResponse(brokers=(broker,), topics=topics)


@contextmanager
def scripted_broker(partitions: int) -> Iterator[ScriptedBroker]:
    """It listens until the test is over."""
    broker = ScriptedBroker(partitions)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while length := self.rfile.read(4):
                frame = memoryview(self.rfile.read(int.from_bytes(length, "big")))
                request = decode_request(frame)
                body = broker.answer(request.header.api_key, request.body)
                if body is None:
                    return
                self.wfile.write(b"".join(encode_response(request.header, body)))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        host, port = server.server_address[:2]
        broker.address = (str(host), int(port))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield broker
        finally:
            server.shutdown()
