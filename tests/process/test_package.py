"""The distribution: what `make wheel` builds works where nothing of the project is."""

import json
import platform
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from tests import doc_pages

from dovetail import DISTRIBUTION, __version__

#: Time for a compiler and for pip's look-up of the build's requirements.
BUILD_S_MAX = 240
COMPILED = ("dovetail._record_check", "dovetail.log.compaction._key_map", "dovetail.spark._records")

#: What the header of an ELF file calls arm64.
_AARCH64 = 183

#: A pipeline, for `dovetail pipeline package`.
PIPELINE = """
from dovetail.teams import Pipeline, Team

def shout(job: str) -> str:
    return job.upper()

shouts = Pipeline("shouts", Team("shout", shout))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and what it requires, but neither our sources nor our tests.

    The wheel is made of the sdist, so the sdist is complete. What the wheel requires comes from
    the environment of the tests: a path in a .pth file brings libraries, not the editable install.
    """
    folder = tmp_path_factory.mktemp("package")
    source = _sources(folder)
    _run([sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)])

    made = folder / "environment"
    venv.create(made, with_pip=False)
    [packages] = made.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "required.pth").write_text("\n".join(libraries) + "\n")
    [wheel] = (folder / "dist").glob("*.whl")
    words = ["--python", str(made), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    _run([sys.executable, "-m", "pip", *words])
    return made


def _sources(folder: Path) -> Path:
    """A copy of what a distribution is made of."""
    source = folder / "source"
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    shutil.copytree(doc_pages.ROOT / "src", source / "src", ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(doc_pages.ROOT / name, source)
    return source


def _run(words: list[str], **options: object) -> str:
    """What a program prints, without our folders on Python's path; fails if it does."""
    done = subprocess.run(
        words,
        env={"PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_S_MAX,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def test_the_wheel_serves_where_nothing_else_is(environment: Path, tmp_path: Path) -> None:
    """F82: from an installed wheel a node starts, with compiled parts and the console's files."""
    python = str(environment / "bin" / "python")
    told = f"import {', '.join(COMPILED)}, dovetail; print(dovetail.__file__)"
    where = _run([python, "-c", told], cwd=tmp_path)
    assert where.startswith(str(environment)), where

    command = [str(environment / "bin" / "dovetail"), "up", "--json", "--data-dir", str(tmp_path)]
    command += ["--set", "kafka.port=0", "--set", "http.port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as node:
        assert node.stdout is not None
        try:
            ready = json.loads(node.stdout.readline())
            ask = f"import urllib.request as web; print(web.urlopen('{ready['http']}').status)"
            assert _run([python, "-c", ask]).strip() == "200", "the console's page"
            dovetail = [str(environment / "bin" / "dovetail"), "topic", "list"]
            _run([*dovetail, "--bootstrap", ready["kafka"]], cwd=tmp_path)
        finally:
            node.send_signal(signal.SIGTERM)


def test_the_doctor_names_the_distribution(environment: Path, tmp_path: Path) -> None:
    """F82: it knows what an installed wheel requires, and what to install is ours."""
    ask = (
        "from dovetail.cli.doctor import machine;"
        "[print(one.check, one.text, one.fix) for one in "
        "machine.judge_packages(machine.gather_packages(), {})]"
    )
    said = _run([str(environment / "bin" / "python"), "-c", ask], cwd=tmp_path)
    assert "packages [etcd]" in said
    assert not re.search(r"\bdovetail\[", said), said


def test_a_pipeline_is_packed_from_an_installed_wheel(environment: Path, tmp_path: Path) -> None:
    """F82, T3: with our own library, and without what only nodes and commands require."""
    pytest.importorskip("pyspark")
    (tmp_path / "wheel_shop.py").write_text(PIPELINE)
    ask = (
        "from pathlib import Path; from dovetail.teams.travel.packing import package;"
        "made = package('wheel_shop', Path('shop.tar.gz'), folder=Path());"
        "print(made.compiled, *made.libraries)"
    )
    said = _run([str(environment / "bin" / "python"), "-c", ask], cwd=tmp_path).split()
    assert said[0] == "True", said
    assert DISTRIBUTION in said
    assert not {"uvicorn", "typer", "starlette"} & set(said), said


def test_the_description_is_ours(environment: Path) -> None:
    """F82, R9: name, version and command are those that the documents say."""
    [about] = environment.glob(f"lib/python*/site-packages/{DISTRIBUTION}-{__version__}.dist-info")
    assert "dovetail = dovetail.cli:main" in (about / "entry_points.txt").read_text()


def test_nothing_says_to_install_a_strangers_package() -> None:
    """F82: documents, messages and unit files name our distribution."""
    stranger = re.compile(r"pip install[^\n`]*\bdovetail\b(?!mq)(?![/\w-]*/)|\bdovetail\[[a-z{]")
    found = []
    root = doc_pages.ROOT
    files = [*doc_pages.pages(), *(root / "src").rglob("*.py"), *(root / "deploy").rglob("*")]
    for path in files:
        if not path.is_file() or path.name == "requirements.md":  # tells of the mistake
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if stranger.search(line) and "No module named" not in line:
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_readme_names_the_tests_and_upgrade_the_versions() -> None:
    """F80, R9: the command that tests it all, and the least versions of what it runs on."""
    assert re.search(r"^make test$", (doc_pages.ROOT / "README.md").read_text(), re.MULTILINE)
    table = (doc_pages.DOCS / "upgrade.md").read_text()
    for name in ("Python", "PostgreSQL", "etcd", "Spark", "Java"):
        assert re.search(rf"^\| {name}[^|]*\| \d", table, re.MULTILINE), name


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or platform.machine() == "aarch64",
    reason="no cross compiler (Debian: g++-aarch64-linux-gnu); `make wheel` installs it",
)
def test_a_wheel_for_arm64_is_built_on_another_machine(tmp_path: Path) -> None:
    """T20: its tag says Linux on arm64, and so does each of its compiled parts."""
    source = _sources(tmp_path)
    for name in ("wheel-arm64", "system-packages"):
        (source / "scripts").mkdir(exist_ok=True)
        shutil.copy(doc_pages.ROOT / "scripts" / name, source / "scripts")
    (source / ".venv" / "bin").mkdir(parents=True)
    interpreter = source / ".venv" / "bin" / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    _run([str(source / "scripts" / "wheel-arm64")])

    [wheel] = (source / "dist").glob("*.whl")
    assert wheel.name.endswith("-linux_aarch64.whl")
    suffix = f".cpython-{sys.version_info.major}{sys.version_info.minor}-aarch64-linux-gnu.so"
    with zipfile.ZipFile(wheel) as opened:
        for module in COMPILED:
            head = opened.read(module.replace(".", "/") + suffix)[:20]
            assert head[:4] == b"\x7fELF"
            assert int.from_bytes(head[18:20], "little") == _AARCH64, module
