"""Apache Kafka's command-line tools, called many times in one Java (tools/Tools.java)."""

import json
import shlex
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

from bench.peers import kafka

_SOURCE = Path(__file__).parent / "tools" / "Tools.java"
#: A tool that says nothing for so long hangs.
_CALL_S_MAX = 90.0

_IN_KAFKA = "org.apache.kafka.tools"
MAINS = {
    "acls": f"{_IN_KAFKA}.AclCommand",
    "broker-api-versions": f"{_IN_KAFKA}.BrokerApiVersionsCommand",
    "client-metrics": f"{_IN_KAFKA}.ClientMetricsCommand",
    "cluster": f"{_IN_KAFKA}.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": f"{_IN_KAFKA}.consumer.ConsoleConsumer",
    "console-producer": f"{_IN_KAFKA}.ConsoleProducer",
    "console-share-consumer": f"{_IN_KAFKA}.consumer.ConsoleShareConsumer",
    "consumer-groups": f"{_IN_KAFKA}.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": f"{_IN_KAFKA}.ConsumerPerformance",
    "delegation-tokens": f"{_IN_KAFKA}.DelegationTokenCommand",
    "delete-records": f"{_IN_KAFKA}.DeleteRecordsCommand",
    "e2e-latency": f"{_IN_KAFKA}.EndToEndLatency",
    "features": f"{_IN_KAFKA}.FeatureCommand",
    "get-offsets": f"{_IN_KAFKA}.GetOffsetShell",
    "groups": f"{_IN_KAFKA}.GroupsCommand",
    "leader-election": f"{_IN_KAFKA}.LeaderElectionCommand",
    "log-dirs": f"{_IN_KAFKA}.LogDirsCommand",
    "metadata-quorum": f"{_IN_KAFKA}.MetadataQuorumCommand",
    "producer-perf-test": f"{_IN_KAFKA}.ProducerPerformance",
    "reassign-partitions": f"{_IN_KAFKA}.reassign.ReassignPartitionsCommand",
    "share-groups": f"{_IN_KAFKA}.consumer.group.ShareGroupCommand",
    "streams-application-reset": f"{_IN_KAFKA}.StreamsResetter",
    "streams-groups": f"{_IN_KAFKA}.streams.StreamsGroupCommand",
    "topics": f"{_IN_KAFKA}.TopicCommand",
    "transactions": f"{_IN_KAFKA}.TransactionsCommand",
    "verifiable-consumer": f"{_IN_KAFKA}.VerifiableConsumer",
    "verifiable-producer": f"{_IN_KAFKA}.VerifiableProducer",
}
#: These take the address behind the name of what they shall do.
_LATE_ADDRESS = {"cluster"}


class Said(NamedTuple):
    """How a tool ended."""

    code: int
    output: str
    errors: str


class Tools:
    """The Java that runs them; a context manager."""

    def __init__(self, log: Path) -> None:
        every = sorted(kafka.jars().glob("*.jar"))
        (own,) = [jar for jar in every if jar.name.startswith(f"kafka-tools-{kafka.VERSION}")]
        others = ":".join(str(jar) for jar in every if jar != own)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [kafka.java(), "-Xmx256m", "-cp", others, str(_SOURCE), str(own)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log

    def __enter__(self) -> "Tools":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def call(self, bootstrap: str, line: str, given: str = "") -> Said:
        """Calls a tool as a shell would, by its name without `kafka-`; `given` is its input."""
        name, *arguments = shlex.split(line)
        address = ["--bootstrap-server", bootstrap]
        arguments = [*arguments, *address] if name in _LATE_ADDRESS else [*address, *arguments]
        asked = {"main": MAINS[name], "arguments": arguments, "input": given}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_CALL_S_MAX, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert answer, f"{line}: no answer; {self._log.read_text()[-2000:]}"
        return Said(**json.loads(answer))
