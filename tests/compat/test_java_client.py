"""The Java client. Java and Maven are a large thing to ask for, so this skips where they miss."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parent / "java"
#: Time for Maven to fetch the client and its own plugins, once.
BUILD_SECONDS_MAX = 180
RUN_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled scenario, beside the client's libraries."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"the Java client needs the program {program}")
    folder = tmp_path_factory.mktemp("java")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    fetch = ["mvn", "-q", "-B", "-f", str(PROJECT / "pom.xml"), *goal]
    sources = map(str, sorted(PROJECT.glob("*.java")))
    compile_ = ["javac", "-nowarn", "-cp", f"{folder}/*", "-d", str(folder), *sources]
    for words in (fetch, compile_):
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
        if words is fetch and done.returncode != 0:
            pytest.skip(f"Maven could not fetch the Java client: {done.stdout[-500:]}")
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_client_works_with_every_codec_and_by_group(
    bootstrap: str, classes: Path, new_name: Callable[[], str]
) -> None:
    """K1, K2, K3, K4, K7: the Java client produces, reads, commits, resumes and administers."""
    run(classes, "Scenario", bootstrap, new_name())


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_what_kafkas_admin_tools_ask_is_answered(
    bootstrap: str, classes: Path, new_name: Callable[[], str]
) -> None:
    """K12, K13, F78: settings, log dirs, elections, reassignments, quotas, features, quorum, users;
    green on Apache Kafka 4.3 too."""
    run(classes, "AdminScenario", bootstrap, new_name())


@pytest.mark.timeout(BUILD_SECONDS_MAX + RUN_SECONDS_MAX)
def test_java_consumers_of_the_new_group_protocol(
    request: pytest.FixtureRequest, classes: Path, new_name: Callable[[], str]
) -> None:
    """K9: they share, take over, subscribe by a pattern; an empty group changes its protocol.
    Green on Apache Kafka 4.3 too."""
    address = os.environ.get("COMPAT_BOOTSTRAP")
    if address is None:
        make = request.getfixturevalue("node_factory")
        address = make(groups_consumer_heartbeat_interval_ms="200ms").bootstrap
    run(classes, "GroupScenario", address, new_name())


def run(classes: Path, scenario: str, *arguments: str) -> None:
    words = ["java", "-cp", f"{classes}/*:{classes}", scenario, *arguments]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "done"
