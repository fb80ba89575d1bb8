"""What `make demo` shows: a node, a topic, a real Kafka client, and a crash that loses nothing.

Everything happens in a temporary folder and on free ports; nothing is left behind.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TOPIC = "orders"
PARTITIONS = 4
MESSAGES = 300_000
VALUE_BYTES = 100


class Node:
    """`dovetail up` as a process of its own."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._errors = data_dir.with_name("stderr.txt")
        self._process: subprocess.Popen[str] | None = None
        self.kafka = ""
        self._port = 0

    def start(self) -> float:
        """Starts it; returns the seconds until it was ready."""
        started = time.perf_counter()
        command = [sys.executable, "-m", "dovetail", "up", "--json", "--no-http"]
        command += ["--data-dir", str(self._data_dir), "--port", str(self._port)]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the node did not start; it said:\n{self._errors.read_text()}")
        self.kafka = json.loads(line)["kafka"]
        self._port = int(self.kafka.rpartition(":")[2])
        return time.perf_counter() - started

    def end(self, number: signal.Signals) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description:<22}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def produce(console: Console, kafka: str) -> tuple[float, int]:
    """Sends all messages; returns the seconds and how many were acknowledged."""
    acknowledged = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1

    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    started = time.perf_counter()
    with progress_bar(console) as progress:
        task = progress.add_task("producing, synced", total=MESSAGES)
        for number in range(MESSAGES):
            value = f'{{"order": {number}}}'.encode().ljust(VALUE_BYTES)
            producer.produce(TOPIC, value, key=str(number % 1000), on_delivery=on_delivery)
            if number % 1000 == 0:
                producer.poll(0)
                progress.update(task, completed=acknowledged)
        while producer.flush(0.1):
            progress.update(task, completed=acknowledged)
        progress.update(task, completed=acknowledged)
    return time.perf_counter() - started, acknowledged


def consume(console: Console, kafka: str) -> tuple[float, int]:
    """Reads everything; returns the seconds until the last one and how many there were."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "demo",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            # The library's own second of waiting when its queue is full would count as the node's.
            "fetch.queue.backoff.ms": 5,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    started, count, ended = time.perf_counter(), 0, 0
    last = started
    with progress_bar(console) as progress:
        task = progress.add_task("consuming", total=MESSAGES)
        while ended < PARTITIONS:
            before = count
            for message in consumer.consume(10_000, timeout=0.05):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended += 1
            if count > before:
                last = time.perf_counter()
            progress.update(task, completed=count)
    consumer.close()
    return last - started, count


def run(console: Console, node: Node) -> tuple[tuple[float, int], tuple[float, int]]:
    """The five steps; returns what was acknowledged and what was read back."""
    console.print("[bold]1. A node[/bold] in one process, with nothing beside it")
    seconds = node.start()
    console.print(f"   ready at {node.kafka} after {seconds:.1f} s")
    admin = AdminClient({"bootstrap.servers": node.kafka, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
    console.print(f"[bold]2. A topic[/bold] {TOPIC!r} with {PARTITIONS} partitions")
    console.print("[bold]3. Messages[/bold] through confluent-kafka, every batch on disk first")
    produced = produce(console, node.kafka)
    console.print("[bold]4. kill -9[/bold], and start again on the same folder")
    node.end(signal.SIGKILL)
    console.print(f"   ready again after {node.start():.1f} s")
    console.print("[bold]5. Everything is there[/bold]")
    consumed = consume(console, node.kafka)
    return produced, consumed


def main() -> None:
    console = Console()
    with tempfile.TemporaryDirectory(prefix="dovetail-demo-") as folder:
        node = Node(Path(folder) / "data")
        try:
            produced, consumed = run(console, node)
        finally:
            node.end(signal.SIGTERM)
    table = Table(title=f"{MESSAGES:,} messages of {VALUE_BYTES} bytes")
    for column in ("", "messages", "seconds", "messages a second"):
        table.add_column(column, justify="right" if column else "left")
    for name, (seconds, count) in (("acknowledged", produced), ("read back", consumed)):
        table.add_row(name, f"{count:,}", f"{seconds:.2f}", f"{count / seconds:,.0f}")
    console.print(table)
    if produced[1] != MESSAGES or consumed[1] != MESSAGES:
        raise SystemExit("something is missing: this is a bug, please report it")
    console.print("Next: [bold].venv/bin/dovetail up[/bold], and the README.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
