"""Frameworks on top of Kafka's clients, each in an environment of its own, as its users have it.

Fetching and building them takes minutes, so they run with STRANGERS=1 (`make soak`) alone.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compat import jvm
from tests.compat.test_transactions import committed

pytestmark = [
    pytest.mark.skipif(not os.environ.get("STRANGERS"), reason="minutes to fetch: STRANGERS=1"),
    pytest.mark.timeout(0),
]

_HERE = Path(__file__).parent
_PACKAGES = ["quixstreams==3.28.1", "faststream[kafka,confluent]==0.7.8", "pyspark==4.0.0"]
_FETCH_SECONDS_MAX = 1200
_RUN_SECONDS_MAX = 240


def run(*words: str | Path, cwd: Path | None = None, seconds_max: int = _RUN_SECONDS_MAX) -> str:
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, timeout=seconds_max, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the frameworks."""
    folder = tmp_path_factory.mktemp("frameworks")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "-q", "install", *_PACKAGES, seconds_max=_FETCH_SECONDS_MAX)
    return folder / "bin/python"


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_quix_streams(
    bootstrap: str, python: Path, new_name: Callable[[], str], tmp_path: Path, guarantee: str
) -> None:
    """K8, K14, L17: a hundred records counted by five keys, with the store in a compacted topic."""
    name = new_name()
    run(python, _HERE / "frameworks/quix.py", bootstrap, name, guarantee, tmp_path)
    found = Counter(int(count) for count in committed(bootstrap, f"{name}-out", 1))
    assert found == dict.fromkeys(range(1, 21), 5)


@pytest.mark.parametrize("client", ["kafka", "confluent"])
def test_faststream(bootstrap: str, python: Path, new_name: Callable[[], str], client: str) -> None:
    """K7, K14: two steps, each with a group of its own, by aiokafka and by librdkafka."""
    said = run(python, _HERE / "frameworks/faststream_app.py", client, bootstrap, new_name())
    # Its log goes to the same place.
    assert said.splitlines()[-1].split() == [str(2 * number) for number in range(20)]


def test_sparks_own_connector(
    bootstrap: str, python: Path, new_name: Callable[[], str], tmp_path: Path
) -> None:
    """K14: a batch written, a stream to another topic, a batch read."""
    jvm.need("java", "mvn")
    jars = tmp_path / "jars"
    # What Spark itself does not have; its own jars a second time keep its executors from starting.
    needed = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients"
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    goal += [f"-DincludeArtifactIds={needed},commons-pool2"]
    pom = _HERE / "frameworks/pom.xml"
    run("mvn", "-q", "-B", "-f", pom, *goal, seconds_max=_FETCH_SECONDS_MAX)
    given = bootstrap, new_name(), tmp_path, jars
    said = run(python, _HERE / "frameworks/spark_connector.py", *given)
    assert said.split() == [str(2 * number) for number in range(50)]


def test_rskafka(bootstrap: str, new_name: Callable[[], str], tmp_path: Path) -> None:
    """K1, K2, K3, K14: created, written under three codecs, read from within a batch, deleted."""
    jvm.need("cargo")
    project = tmp_path / "rust"
    shutil.copytree(_HERE / "rust", project)
    run("cargo", "build", "-q", cwd=project, seconds_max=_FETCH_SECONDS_MAX)
    said = run(project / "target/debug/clients", bootstrap, new_name())
    each = range(3)
    wanted = [f"{part}/{n}" if n != 7 else "none" for part in each for n in range(5, 20)]
    assert said.split() == wanted
