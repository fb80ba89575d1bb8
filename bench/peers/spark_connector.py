"""Spark's own Kafka connector, in a Spark of its version, beside our source; both are kept.

The connector is for one minor version of Spark, and the newest Spark has none. So both sources run
in the Spark of the connector: in an environment that has it before the libraries of this one.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from bench.peers import maven
from bench.peers.kafka import java
from bench.peers.server import PeerMissing
from dovetail.spark.runtime import cache_folder

VERSION = "4.0.0"
#: For pip, which fetches 400 MB.
INSTALL_S_MAX = 900
RUN_S_MAX = 3600

_POM = Path(__file__).with_name("spark_connector.pom.xml")
_DRIVER = Path(__file__).with_name("spark_connector_driver.py")
#: What Spark itself does not have; its own jars a second time keep its executors from starting.
_ARTIFACTS = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)


def jars() -> Path:
    """A folder with the connector and what it needs. Raises `PeerMissing`."""
    name = f"spark-connector-{VERSION}"
    return maven.jars(_POM, name, "Spark's connector", artifacts=_ARTIFACTS)


def python() -> Path:
    """The Python of an environment with that version of Spark. Raises `PeerMissing`."""
    name = f"spark-{VERSION}-python-{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder(os.environ) / name
    program, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(
            [
                program,
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                f"pyspark=={VERSION}",
                "py4j<0.11",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_S_MAX,
        )
        if done.returncode != 0:
            raise PeerMissing(f"pip could not install PySpark {VERSION}: {done.stderr[-500:]}")
        ready.touch()
    site = next((folder / "lib").glob("python*/site-packages"))
    # Behind its own: ours is found there, and what it needs.
    ours = Path(__file__).parents[2] / "src"
    (site / "zz_ours.pth").write_text(f"{ours}\n{sysconfig.get_path('purelib')}\n")
    return program


def rates(folder: Path, bootstrap: str, topic: str, *, count: int, rounds: int) -> dict[str, float]:
    """Messages a second by the name of a source, the best of some rounds. Raises `PeerMissing`."""
    program, found = python(), jars()
    folder.mkdir(parents=True, exist_ok=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [program, _DRIVER, found, bootstrap, topic, str(count), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S_MAX,
        cwd=folder,
        env=clean | {"JAVA_HOME": str(Path(java()).parents[1]), "PYSPARK_PYTHON": str(program)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured
