"""How long a partition is out of reach when its owner goes, as an ordinary producer feels it.

An idempotent producer sends a record every 5 ms to one partition, and notes when each is
acknowledged. Then the broker that leads the partition is killed (or stopped). The outage is the
longest time without an acknowledgement around it. So it holds everything: the end of the lease,
the takeover with its recovery, and the client's own way to find the new owner.

The client is confluent-kafka with its waits after errors cut short (named below the table): with
its defaults it may sit out seconds of its own (`reconnect.backoff.max.ms` is 10 s).
"""

import itertools
import threading
import time
from collections.abc import Callable

from confluent_kafka import Producer

from bench import client
from bench.local_cluster import LEASE_S, LocalCluster
from bench.run import Run
from bench.table import Line

_EVERY_S = 0.005
#: Records acknowledged behind the fault before the next one: the partition is well again.
WELL = 100
#: What is required.
_ALLOWED_S = 1.0
_CLEAN_S_MAX = 0.5
_KILLS = 20
_STOPS = 10

WAITS = {
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
}
_NOTE = (
    "from outside: a producer that sends every 5 ms; the longest time without an acknowledgement. "
    + ", ".join(f"{name}={value}" for name, value in WAITS.items())
)


def measure(run: Run) -> list[Line]:
    kills, stops = run.sized(_KILLS, quick=3), run.sized(_STOPS, quick=3)
    with LocalCluster(run.folder / "failover") as cluster:
        killed = _outages(run, cluster, kills, "kill -9", cluster.kill)
        stopped = _outages(run, cluster, stops, "a clean stop", cluster.stop)
    return [
        Line(
            "g failover",
            f"outage of a partition after kill -9 of its owner, longest of {kills}",
            max(killed),
            "s",
            f"lease ({LEASE_S:g} s) + {_ALLOWED_S:g} s",
            LEASE_S + _ALLOWED_S,
            ratio_max=1.0,
            note=_NOTE,
        ),
        Line("g failover", "the same, median", sorted(killed)[len(killed) // 2], "s"),
        Line(
            "g failover",
            f"outage after a clean stop of its owner, longest of {stops}",
            max(stopped),
            "s",
            "limit",
            _CLEAN_S_MAX,
            ratio_max=1.0,
            note=_NOTE,
        ),
        Line("g failover", "the same, median", sorted(stopped)[len(stopped) // 2], "s"),
    ]


def _outages(
    run: Run, cluster: LocalCluster, times: int, what: str, hurt: Callable[[str], None]
) -> list[float]:
    topic = client.create_topic(cluster.bootstrap, "failover")
    found = []
    with Probe(cluster.bootstrap, topic) as probe:
        for at in range(times):
            probe.await_acknowledged(WELL)
            owner = cluster.owner(topic, 0)
            run.step(f"{what} of {owner}, {at + 1} of {times}")
            begun = time.perf_counter()
            hurt(owner)
            probe.await_acknowledged(WELL)
            found.append(probe.longest_silence(since=begun))
            run.note(f"  {what} of {owner}: {found[-1]:.2f} s")
            cluster.start()
    return found


class Probe:
    """A producer in a thread; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
                **WAITS,
            }
        )
        self._topic = topic
        self._stopping = threading.Event()
        self._more = threading.Condition()
        self._times: list[float] = []
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def await_acknowledged(self, count: int) -> None:
        """Returns when so many more records, sent from now on, are acknowledged."""
        with self._more:
            # What is in flight now was sent before.
            wanted = len(self._times) + len(self._producer) + count
            well = self._more.wait_for(
                lambda: self._failures or len(self._times) >= wanted, client.STALL_S_MAX
            )
        if self._failures or not well:
            raise client.NotDelivered(f"no acknowledgements; refused: {self._failures[:3]}")

    def longest_silence(self, *, since: float) -> float:
        """The longest time between two acknowledgements, the first of them the last one before."""
        with self._more:
            before = [at for at in self._times if at <= since][-1:]
            after = [at for at in self._times if at > since]
        seen = before + after
        return max(later - earlier for earlier, later in itertools.pairwise(seen))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce(self._topic, b"probe", on_delivery=self._on_delivery)
            self._producer.poll(_EVERY_S)
        self._producer.flush(client.STALL_S_MAX)

    def _on_delivery(self, error: object, _: object) -> None:
        with self._more:
            if error is not None:
                self._failures.append(str(error))
            else:
                self._times.append(time.perf_counter())
            self._more.notify_all()
