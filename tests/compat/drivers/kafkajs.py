"""kafkajs, the client of the Node.js world, in one Node.js process per driver.

The process runs `kafkajs/runner.js`: a JSON request per line in, a JSON answer per line out. The
packages are installed by name and version when they are not there yet.
"""

import base64
import fcntl
import itertools
import json
import queue
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.compat.drivers import base

PROJECT = Path(__file__).resolve().parent.parent / "kafkajs"
#: Time for the first installation of four small packages, from a slow mirror.
INSTALL_SECONDS_MAX = 120
#: kafkajs's number for "a topic" in configuration calls.
RESOURCE_TOPIC = 2


def install() -> None:
    """Install the pinned packages into the git-ignored node_modules folder.

    Raises:
        ImportError: when npm could not do so.
    """
    with (PROJECT / ".install-lock").open("w") as lock:
        # Several workers of one test run come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install()


def _install() -> None:
    wanted: dict[str, str] = json.loads((PROJECT / "package.json").read_text())["dependencies"]
    modules = PROJECT / "node_modules"

    def installed(name: str) -> str | None:
        found = modules / name / "package.json"
        return json.loads(found.read_text())["version"] if found.exists() else None

    if all(installed(name) == version for name, version in wanted.items()):
        return
    words = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(
            words, cwd=PROJECT, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ImportError("npm install did not end in time") from error
    if done.returncode != 0:
        raise ImportError(f"npm install failed: {done.stderr.decode(errors='replace')[-500:]}")


def to_text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def to_bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def record_of(view: Any) -> base.Record:
    return base.Record(
        view["partition"],
        int(view["offset"]),
        int(view["timestamp"]),
        to_bytes(view["key"]),
        to_bytes(view["value"]),
        tuple((name, to_bytes(value)) for name, value in view["headers"]),
    )


class KafkajsMember(base.CommittingMember):
    def __init__(self, driver: "KafkajsDriver", group: str, topic: str) -> None:
        self._driver = driver
        self._name = uuid.uuid4().hex
        self._records: list[base.Record] = []
        driver.call("memberOpen", name=self._name, group=group, topic=topic)

    def _look(self) -> Any:
        view = self._driver.call("memberTake", name=self._name)
        self._records.extend(record_of(record) for record in view["records"])
        return view["owned"]

    def partitions(self) -> frozenset[int]:
        return frozenset(self._look())

    def take(self) -> list[base.Record]:
        self._look()
        taken, self._records = self._records, []
        return taken

    def commit(self, positions: Mapping[int, int]) -> None:
        self._driver.call("memberCommit", name=self._name, positions=list(positions.items()))

    def close(self) -> None:
        self._driver.call("memberClose", name=self._name)


class KafkajsDriver(base.Driver):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        install()
        limits = [base.SESSION_TIMEOUT_MS, base.HEARTBEAT_INTERVAL_MS, base.FETCH_WAIT_MS_MAX]
        self._process = subprocess.Popen(
            ["node", "runner.js", bootstrap, *map(str, limits)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._numbers = itertools.count()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def call(self, operation: str, **args: Any) -> Any:
        """One call at a time.

        Raises:
            base.ClientError: with the type that kafkajs gave to its error.
        """
        assert self._process.stdin is not None
        number = next(self._numbers)
        request = {"id": number, "operation": operation, "args": args}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._answers.get(timeout=2 * base.CALL_SECONDS_MAX)
        assert answer is not None, "the Node.js process ended"
        assert answer["id"] == number, "an answer to an earlier call that had timed out"
        if "error" in answer:
            raise base.ClientError(answer["error"]["name"], answer["error"]["message"])
        return answer["result"]

    def _admin(self, method: str, *args: Any) -> Any:
        return self.call("callAdmin", method=method, args=args)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(base.CALL_SECONDS_MAX)
        self._thread.join(base.CALL_SECONDS_MAX)
        self._process.stdout.close()

    def send(self, sending: base.Sending) -> None:
        views = [
            {
                "partition": message.partition,
                "key": to_text(message.key),
                "value": to_text(message.value),
                "headers": [(name, to_text(value)) for name, value in message.headers],
                "timestamp": message.timestamp_ms,
            }
            for message in sending.messages
        ]
        self.call(
            "produce",
            topic=sending.topic,
            messages=views,
            codec=sending.codec,
            idempotent=sending.idempotent,
            timeoutMs=sending.timeout_ms,
        )

    def fetch(self, reading: base.Reading) -> list[base.Record]:
        assert reading.reset == "earliest", "kafkajs resets to one of the ends"
        group = f"reader-{uuid.uuid4().hex}"
        views = self.call(
            "read",
            topic=reading.topic,
            group=group,
            partition=reading.partition,
            start=reading.start,
            count=reading.count,
        )
        return [record_of(view) for view in views]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._admin("fetchTopicOffsetsByTimestamp", topic, timestamp_ms)
        (offset,) = (int(view["offset"]) for view in found if view["partition"] == partition)
        return offset if offset >= 0 else None

    def member(self, group: str, topic: str, *, instance: str | None = None) -> KafkajsMember:
        assert instance is None, "kafkajs has no static members"
        return KafkajsMember(self, group, topic)

    def topics(self) -> Mapping[str, int]:
        listed = self._admin("fetchTopicMetadata")["topics"]
        return {view["name"]: len(view["partitions"]) for view in listed}

    def cluster(self) -> base.ClusterView:
        view = self._admin("describeCluster")
        addresses = frozenset(f"{broker['host']}:{broker['port']}" for broker in view["brokers"])
        return base.ClusterView(addresses, view["controller"] is not None)

    def create_topic(
        self, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        entries = [{"name": name, "value": value} for name, value in (config or {}).items()]
        wanted = {"topic": topic, "numPartitions": partitions, "configEntries": entries}
        created = self._admin("createTopics", {"topics": [wanted]})
        if not created:
            raise base.ClientError("TOPIC_ALREADY_EXISTS", "createTopics answered false")

    def delete_topic(self, topic: str) -> None:
        self._admin("deleteTopics", {"topics": [topic]})

    def add_partitions(self, topic: str, total: int) -> None:
        wanted = {"topic": topic, "count": total}
        self._admin("createPartitions", {"topicPartitions": [wanted]})

    def config(self, topic: str) -> Mapping[str, str | None]:
        asked = {"resources": [{"type": RESOURCE_TOPIC, "name": topic}], "includeSynonyms": False}
        (view,) = self._admin("describeConfigs", asked)["resources"]
        return {entry["configName"]: entry["configValue"] for entry in view["configEntries"]}

    def set_config(self, topic: str, config: Mapping[str, str]) -> None:
        entries = [{"name": name, "value": value} for name, value in config.items()]
        resource = {"type": RESOURCE_TOPIC, "name": topic, "configEntries": entries}
        self._admin("alterConfigs", {"validateOnly": False, "resources": [resource]})

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        # kafkajs asks for the leader of a topic only if it met the topic before.
        self._admin("fetchTopicOffsets", topic)
        wanted = {"partition": partition, "offset": str(before)}
        self._admin("deleteTopicRecords", {"topic": topic, "partitions": [wanted]})

    def groups(self) -> frozenset[str]:
        return frozenset(view["groupId"] for view in self._admin("listGroups")["groups"])

    def group(self, group: str) -> base.GroupView:
        (view,) = self._admin("describeGroups", [group])["groups"]
        return base.GroupView(view["state"].lower(), len(view["members"]))

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        (view,) = self._admin("fetchOffsets", {"groupId": group, "topics": [topic]})
        found = {part["partition"]: int(part["offset"]) for part in view["partitions"]}
        return {part: found[part] for part in partitions if found.get(part, -1) >= 0}

    def set_committed(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        wanted = [{"partition": part, "offset": str(at)} for part, at in positions.items()]
        self._admin("setOffsets", {"groupId": group, "topic": topic, "partitions": wanted})

    def delete_group(self, group: str) -> None:
        self._admin("deleteGroups", [group])
