"""One leader among three replicas, whose node is killed too."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.conftest import RunningNode
from tests.process.stream.replicas import Replica, Replicas
from tests.soak.part import Heal


class StreamPart:
    """Replicas that resume: each event is handled, at most one leads in a term."""

    name = "stream"

    def __init__(self, node: RunningNode, folder: Path, rng: random.Random) -> None:
        folder.mkdir()
        self._rng, self._node = rng, node
        self._refused = 0
        self._replicas = Replicas(folder, node, count=3, algorithm="MAJORITY", takeover="resume")
        self._replicas.__enter__()

    def faults(self) -> Sequence[Callable[[], Heal]]:
        return [self.kill_a_replica, self.pause_a_replica, self.cut_a_replica, self.kill_the_node]

    def kill_a_replica(self) -> Heal:
        one = self._one()
        one.kill()
        return one.start

    def pause_a_replica(self) -> Heal:
        one = self._one()
        one.pause()
        return one.wake

    def cut_a_replica(self) -> Heal:
        one = self._one()
        others = [other.name for other in self._replicas.replicas if other is not one]
        ways = [(one.name, other) for other in [*others, "stream", "log"]]
        self._replicas.cut(*self._rng.sample(ways, self._rng.randint(1, len(ways))))
        return self._replicas.heal

    def kill_the_node(self) -> Heal:
        self._node.kill()
        return self._node.start

    def _one(self) -> Replica:
        """The leader, most of the time."""
        leading = [one for one in self._replicas.replicas if one.leads]
        if leading and self._rng.random() < 2 / 3:
            return leading[0]
        return self._rng.choice(self._replicas.replicas)

    def done(self) -> int:
        for one in self._replicas.replicas:
            self._refused += one.start_again_if_refused()
            one.fail_if_ended()
        return len(self._replicas.handled)

    def pids(self) -> Mapping[str, int]:
        return {f"replica {one.number}": one.pid for one in self._replicas.replicas if one.alive}

    def finish(self) -> None:
        self._replicas.check_all_handled()

    def judge(self) -> str:
        self._replicas.check_leaders()
        handled = self._replicas.handled
        places = {(item.lane, item.offset) for item in handled}
        return (
            f"{len(places)} events handled, {len(handled) - len(places)} of them again at a "
            f"takeover, {len(self._replicas.leaders)} terms with a leader, {self._refused} starts "
            "of a replica refused while its node was away"
        )

    def end(self) -> None:
        self._replicas.__exit__()
