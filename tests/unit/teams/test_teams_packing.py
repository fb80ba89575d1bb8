"""The archive of a pipeline: what is in it, and what is refused."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from bench.peers.server import unpack
from typer.testing import CliRunner

pytest.importorskip("pyspark")

from dovetail.cli.app import app
from dovetail.errors import InvalidInput, NotFound
from dovetail.spark.records import COMPILED
from dovetail.teams.travel import packing
from dovetail.teams.travel.packing import package, spark_settings

SHOP = """
import helping.words
from dovetail.teams import Pipeline, Team

def shout(job: str) -> str:
    return helping.words.loud(job)

shouts = Pipeline("shouts", Team("shout", shout))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project: a module, a package with data, and what must stay at home."""
    made = tmp_path_factory.mktemp("project")
    (made / "packed_shop.py").write_text(SHOP)
    (made / "helping" / "__pycache__").mkdir(parents=True)
    (made / "helping" / "words.py").write_text("def loud(text):\n    return text.upper()\n")
    (made / "helping" / "unused.py").write_text("")
    (made / "helping" / "words.txt").write_text("data")
    (made / "helping" / ".secret").write_text("")
    (made / "helping" / "__pycache__" / "words.pyc").write_text("")
    (made / "elsewhere.py").write_text("")
    return made


def test_the_archive_runs_where_only_python_is(folder: Path, tmp_path: Path) -> None:
    """T3, F7a: with the modules, their libraries and the compiled decoder, and nothing of Spark."""
    target = tmp_path / "shouts.tar.gz"
    made = package("packed_shop", target, folder=folder)
    assert made.modules == ["dovetail", "helping", "packed_shop"]
    assert made.compiled is COMPILED
    assert "msgspec" in made.libraries
    assert not {"pyspark", "py4j", "pyarrow", "numpy", "pandas"} & set(made.libraries)

    unpacked = tmp_path / "there"
    with tarfile.open(target) as archive:
        names = set(archive.getnames())
    unpack(target, unpacked)
    assert {"helping/words.txt", "helping/unused.py", "packed_shop.py"} <= names
    assert not {one for one in names if "secret" in one or "__pycache__" in one}
    assert "elsewhere.py" not in names

    # A Python that sees nothing else: no site-packages, no project.
    ask = (
        "import packed_shop, msgspec, dovetail.spark.records as r;"
        "print(packed_shop.shout('a'), r.COMPILED, packed_shop.__file__)"
    )
    python = [sys.executable, "-S", "-c", ask]
    said = subprocess.run(
        python, env={"PYTHONPATH": str(unpacked)}, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.split()[:2] == ["A", str(COMPILED)]
    assert said.stdout.split()[2].startswith(str(unpacked))

    first = target.read_bytes()
    package("packed_shop", target, folder=folder)
    assert target.read_bytes() == first, "the same files, the same bytes"
    assert spark_settings(target)["spark.archives"] == f"{target}#dovetail-package"


def test_what_cannot_be_packed_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3, U7: with the reason, and no half-written file."""
    target = tmp_path / "shouts.tar.gz"
    with pytest.raises(InvalidInput, match=r"does not end in \.tar\.gz"):
        package("packed_shop", tmp_path / "shouts.zip", folder=folder)
    with pytest.raises(InvalidInput, match="No module named 'no_shop'"):
        package("no_shop", target, folder=folder)
    with pytest.raises(NotFound, match="no library 'no-such-library' is installed"):
        package("packed_shop", target, folder=folder, libraries=["no-such-library"])
    monkeypatch.setattr(packing, "PACKAGE_BYTES_MAX", 1000)
    with pytest.raises(InvalidInput, match="the limit is 1,000"):
        package("packed_shop", target, folder=folder)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3, U4: and names a pipeline that cannot be imported by its error."""
    monkeypatch.chdir(folder)
    target = tmp_path / "made.tar.gz"
    done = CliRunner().invoke(
        app, ["pipeline", "package", "packed_shop:shouts", "--to", str(target)]
    )
    assert done.exit_code == 0, done.stderr
    assert "packed_shop" in done.stderr
    assert target.is_file()
    (folder / "packed_bad.py").write_text("1 / 0\n")
    done = CliRunner().invoke(app, ["pipeline", "package", "packed_bad:shouts"])
    assert done.exit_code == 2
    assert "ZeroDivisionError" in done.stderr
