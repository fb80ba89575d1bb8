"""Replicas as real processes on a real node, cut by gates, and a checker that counts."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python
from tests.conftest import RunningNode
from tests.etcd_server import free_ports
from tests.process.stream.gates import Gates
from tests.stopping import pause_process

from dovetail.dead_letter import PLACE

CHILD = Path(__file__).with_name("replica_child.py")
ROOT = Path(__file__).parent.parent.parent.parent
TIMEOUT_MS = 700
#: Elections need all replicas to have their turn within a time-out, so a busy machine takes long.
DEADLINE_S = 180.0
LANES = 2
PRODUCE_PAUSE_S = 0.02
RETRY_MS = 20
#: The ends of the events that a handler fails on; see `replica_child`.
POISON = (b"49", b"99")


class Handled(NamedTuple):
    """An event that a replica says it handled."""

    member: str
    lane: int
    offset: int
    term: int


class Replica:
    """One process; `lines` is what it said."""

    def __init__(self, cluster: "Replicas", number: int, given: dict[str, Any]) -> None:
        self._cluster = cluster
        self.number = number
        self._given = given
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.name = ""
        self.role = ""
        self.term = 0

    def start(self) -> None:
        """Starts the process, and does not wait."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self.role = ""
        with self._log_path.open("a") as log:
            self._process = warm_python.Popen(
                [sys.executable, str(CHILD), json.dumps(self._given)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    @property
    def _log_path(self) -> Path:
        return self._cluster.folder / f"replica-{self.number}.log"

    def fail_if_ended(self) -> None:
        """A replica ends when it is told to, and not by itself."""
        ended = self._process is not None and self._process.poll() is not None
        assert not ended, f"replica {self.number} has ended:\n{self._log_path.read_text()[-3000:]}"

    def start_again_if_refused(self) -> bool:
        """Does as a supervisor: one that cannot reach its stream says so at its start, and ends."""
        process = self._process
        if process is None or process.poll() is None or self.role:
            return False
        if "cannot reach" not in self._log_path.read_text()[-300:]:
            return False
        self._end(signal.SIGKILL)
        self.start()
        return True

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def leads(self) -> bool:
        return self.alive and self.role == "leader"

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        pause_process(self._process.pid)

    def wake(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        process.wait(DEADLINE_S)
        assert self._reader is not None
        self._reader.join(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            line = json.loads(text)
            with self._cluster.changed:
                if line["kind"] == "ready":
                    self.name = line["member"]
                    self.role = self.role or "follower"
                elif line["kind"] == "role":
                    self.role, self.term = line["role"], line["term"]
                    self._cluster.on_role(self, line)
                else:
                    place = (line["lane"], line["offset"], line["term"])
                    self._cluster.handled.append(Handled(str(self.number), *place))
                self._cluster.changed.notify_all()


class Replicas:
    """A cluster of replicas, a producer that never stops, and what was seen."""

    def __init__(
        self,
        folder: Path,
        node: RunningNode,
        *,
        count: int,
        algorithm: str,
        takeover: str,
        etcd: str | None = None,
        attempts_max: int = 1,
    ) -> None:
        """With more than one attempt, what fails to the last of them is set aside in a topic."""
        self.folder = folder
        self.takeover = takeover
        self.topic = f"events-{folder.name}"
        self.dead_topic = f"{self.topic}.dead" if attempts_max > 1 else ""
        self.changed = threading.Condition()
        self.handled: list[Handled] = []
        self.leaders: dict[int, str] = {}
        self.problems: list[str] = []
        self.produced: set[tuple[int, int]] = set()
        #: Those of them whose handler raises.
        self.poison: set[tuple[int, int]] = set()
        self.gates = Gates()
        self._node = node
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        lanes = {self.topic: LANES, **({self.dead_topic: 1} if self.dead_topic else {})}
        made = admin.create_topics([NewTopic(name, count) for name, count in lanes.items()])
        for done in made.values():
            done.result(30)
        ports = free_ports(2 * count)
        self.replicas = []
        for number in range(count):
            outer, inner = ports[2 * number], ports[2 * number + 1]
            name = f"http://127.0.0.1:{outer}/symphony-api/cluster-communication"
            self.gates.member(name, outer, f"127.0.0.1:{inner}")
            settings = {
                "coordination_stream_id": f"shared-{folder.name}",
                "environment_identifier": "test",
                "algorithm": algorithm,
                "takeover": takeover,
                "timeout_ms": TIMEOUT_MS,
                "endpoint_host_and_port": f"127.0.0.1:{outer}",
                "listen_port": inner,
                "shared_secret": "a secret of sixteen bytes or more",
                "vote_path": str(folder / f"vote-{number}"),
                "attempts_max": attempts_max,
                "retry_ms": RETRY_MS,
                "dead_letters_topic": self.dead_topic,
            }
            given = {
                "stream_bootstrap": self.gates.kafka(name, "stream", node.bootstrap),
                "log_bootstrap": self.gates.kafka(name, "log", node.bootstrap),
                "topic": self.topic,
                "etcd": None if etcd is None else self.gates.plain(name, "etcd", etcd),
                "settings": settings,
            }
            self.replicas.append(Replica(self, number, given))
        self._stop = threading.Event()
        self._producer = threading.Thread(target=self._produce, daemon=True)

    def __enter__(self) -> "Replicas":
        try:
            for replica in self.replicas:
                replica.start()
            self.wait(lambda: all(r.name for r in self.replicas), "all replicas are up")
        except BaseException:
            self.__exit__()
            raise
        self._producer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._producer.is_alive():
            self._producer.join(DEADLINE_S)
        for replica in self.replicas:
            replica.kill()
        self.gates.close()

    # --- what is seen -----------------------------------------------------------------------------

    def on_role(self, replica: Replica, line: dict[str, Any]) -> None:
        """Called with the lock held."""
        if line["role"] == "leader":
            known = self.leaders.setdefault(line["term"], str(replica.number))
            if known != str(replica.number):
                self.problems.append(f"term {line['term']} is led by {known} and {replica.number}")

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._node.bootstrap, "linger.ms": 0, "log_level": 0}
        )

        def stored(error: object, message: Any) -> None:
            assert error is None
            place = (message.partition(), message.offset())
            with self.changed:
                self.produced.add(place)
                if message.value().endswith(POISON):
                    self.poison.add(place)

        number = 0
        while not self._stop.wait(PRODUCE_PAUSE_S):
            producer.produce(
                self.topic, b"%d" % number, partition=number % LANES, on_delivery=stored
            )
            producer.poll(0)
            number += 1
        producer.flush(60)

    def wait(self, reached: Callable[[], object], what: str) -> None:
        """Waits until something is seen."""
        with self.changed:
            if not self.changed.wait_for(reached, DEADLINE_S):
                raise AssertionError(f"not seen within {DEADLINE_S:g} s: {what}\n{self.logs()}")

    def leader(self) -> Replica:
        """The one leader, and it handles events."""
        self.wait(lambda: len(self._leading()) == 1, "one leader")
        with self.changed:
            (leader,) = self._leading()
        self.wait_handled_by(lambda handled: handled.member == str(leader.number))
        return leader

    def _leading(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.leads]

    def next_leader(self, after: Replica) -> Replica:
        """Another replica than `after` leads under a higher term, and handles events."""
        term = after.term
        others = [replica for replica in self.replicas if replica is not after]
        self.wait(
            lambda: any(r.leads and r.term > term for r in others),
            "another leader of a higher term",
        )
        with self.changed:
            (leader,) = [r for r in others if r.leads and r.term > term]
        self.wait_handled_by(lambda handled: handled.member == str(leader.number))
        return leader

    def wait_handled_by(self, wanted: Callable[[Handled], bool]) -> None:
        """Waits for one more event that is handled as wanted."""
        with self.changed:
            seen = len(self.handled)
        self.wait(lambda: any(map(wanted, self.handled[seen:])), "an event handled as expected")

    def cut(self, *ways: tuple[str, str]) -> None:
        """Cuts both ways."""
        self.gates.cut(*ways)

    def heal(self) -> None:
        """Opens all gates."""
        self.gates.heal()

    # --- what must hold ---------------------------------------------------------------------------

    def check_leaders(self) -> None:
        """At no time did two replicas lead under one term."""
        with self.changed:
            assert self.problems == []

    def check_all_handled(self) -> None:
        """Everything that is acknowledged by now is handled."""
        with self.changed:
            wanted = set(self.produced)
        self.wait(
            lambda: wanted <= {(item.lane, item.offset) for item in self.handled},
            "every event is handled",
        )

    def check_poison_is_set_aside(self) -> None:
        """Every acknowledged event that fails each time is a dead letter, and nothing else is."""
        with self.changed:
            wanted = set(self.poison)
        consumer = Consumer({"bootstrap.servers": self._node.bootstrap, "group.id": "dead"})
        consumer.assign([TopicPartition(self.dead_topic, 0, 0)])
        found: set[tuple[int, int]] = set()
        deadline = time.monotonic() + DEADLINE_S
        while not wanted <= found:
            assert time.monotonic() < deadline, f"not set aside: {wanted - found}\n{self.logs()}"
            for record in consumer.consume(500, 0.2):
                assert record.value().endswith(POISON)
                lane, _, offset = dict(record.headers())[PLACE].decode().partition(":")
                found.add((int(lane), int(offset)))
        consumer.close()

    def check_one_term_each(self) -> None:
        """No event was handled under two terms, nor twice under one."""
        with self.changed:
            terms: dict[tuple[int, int], int] = {}
            for item in self.handled:
                place = (item.lane, item.offset)
                assert place not in terms, f"{item} was handled before, under term {terms[place]}"
                terms[place] = item.term

    def logs(self) -> str:
        """The last lines of each replica's log."""
        texts = []
        for path in sorted(self.folder.glob("replica-*.log")):
            texts.append(f"--- {path.name}\n{path.read_text()[-1500:]}")
        return "\n".join(texts)


def running_replicas(folder: Path, node: RunningNode, **given: Any) -> Iterator[Replicas]:
    """For fixtures."""
    folder.mkdir(parents=True, exist_ok=True)
    with Replicas(folder, node, **given) as replicas:
        yield replicas
