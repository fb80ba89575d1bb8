"""Kafka Streams on a node: an application that counts words in a store, and dies."""

import uuid
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.compat import jvm
from tests.compat.conftest import external
from tests.compat.drivers.base import wait_for
from tests.compat.reading import read_messages
from tests.compat.server import Node, TopicMaker

PARTITIONS = 2
WAIT_S = 90.0
WORDS = [f"word-{number}" for number in range(10)]


class Counting:
    """The application, what it is given, and what it says of it."""

    def __init__(
        self, bootstrap: str, classes: Path, folder: Path, topics: tuple[str, str]
    ) -> None:
        self._bootstrap = bootstrap
        self._classes = classes
        self._folder = folder
        self._topics = topics
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._name = f"counting-{uuid.uuid4().hex[:8]}"
        self._lives = 0
        self._line = 0
        self.wanted: Counter[str] = Counter()

    def start(self, guarantee: str) -> jvm.JavaProgram:
        """A new life of the application, with nothing on its disk."""
        self._lives += 1
        state = self._folder / f"state-{self._lives}"
        given = (self._bootstrap, self._name, *self._topics, guarantee, str(state))
        log = self._folder / f"streams-{self._lives}.log"
        return jvm.JavaProgram(self._classes, log, "WordCount", *given)

    def write(self, lines: int) -> None:
        for _ in range(lines):
            words = [WORDS[(self._line * step) % len(WORDS)] for step in (1, 3, 7)]
            self.wanted.update(words)
            place = self._line % PARTITIONS
            self._producer.produce(self._topics[0], " ".join(words), partition=place)
            self._line += 1
        assert self._producer.flush(WAIT_S) == 0

    def counts(self) -> dict[str, int]:
        """The last count of each word that is committed."""
        topic = self._topics[1]
        found = read_messages(self._bootstrap, topic, PARTITIONS, "read_committed", wait_s=WAIT_S)
        return {(one.key() or b"").decode(): int(one.value() or 0) for one in found}

    def wait(self, share: float) -> None:
        """Waits until so much of what was written is counted."""
        least = share * self.wanted.total()
        wait_for("counts", lambda: sum(self.counts().values()) >= least, seconds=WAIT_S)


@pytest.mark.timeout(jvm.BUILD_SECONDS_MAX + 4 * WAIT_S)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_words_are_counted_whoever_dies(
    request: pytest.FixtureRequest,
    bootstrap: str,
    strangers: Path,
    topic_maker: TopicMaker,
    tmp_path: Path,
    guarantee: str,
) -> None:
    """K8, K14, L17: its store is a compacted topic, positions and counts end in one transaction.
    Exactly once they are exact; at least once nothing is missing. Green on Apache Kafka 4.3 too.
    """
    topics = (topic_maker(partitions=PARTITIONS), topic_maker(partitions=PARTITIONS))
    counting = Counting(bootstrap, strangers, tmp_path, topics)
    counting.write(200)
    application = counting.start(guarantee)
    try:
        counting.wait(0.3)
        counting.write(200)
        application.kill()
        application = counting.start(guarantee)
        counting.wait(0.6)
        counting.write(100)
        if external() is None:
            node: Node = request.getfixturevalue("node")
            node.kill()
            node.start()
        counting.write(100)
        exact = guarantee == "exactly_once_v2"

        def done() -> bool:
            found = counting.counts()
            if exact:
                return found == counting.wanted
            return all(found.get(word, 0) >= count for word, count in counting.wanted.items())

        wait_for("all words", done, seconds=WAIT_S)
    except TimeoutError as error:
        raise AssertionError(f"{error}; {application.said()}") from error
    finally:
        application.kill()
    if exact:
        assert counting.counts() == counting.wanted
