"""Jars that Maven fetches once for a peer; they are kept in the cache folder."""

import os
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

from bench.peers.server import PeerMissing, find_program
from dovetail.spark.runtime import cache_folder

#: Time for Maven to fetch some fifty jars, once.
FETCH_S_MAX = 300


def jars(pom: Path, name: str, what: str, *, artifacts: Sequence[str] = ()) -> Path:
    """A folder with what a POM names, or these artifacts of it alone. Raises `PeerMissing`."""
    state = zlib.crc32(pom.read_bytes())
    folder = cache_folder(os.environ) / f"{name}-{state:08x}"
    if folder.is_dir():
        return folder
    made = folder.with_name(f"{folder.name}.{os.getpid()}")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={made}"]
    if artifacts:
        goal.append(f"-DincludeArtifactIds={','.join(artifacts)}")

    done = subprocess.run(
        [find_program("mvn"), "-q", "-B", "-f", str(pom), *goal],
        capture_output=True,
        text=True,
        check=False,
        timeout=FETCH_S_MAX,
    )
    if done.returncode != 0:
        raise PeerMissing(f"Maven could not fetch {what}: {done.stdout[-500:]}")
    try:
        made.rename(folder)
    except OSError:
        # Another process was faster.
        shutil.rmtree(made)
    return folder
