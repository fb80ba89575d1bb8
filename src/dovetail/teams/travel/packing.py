"""An archive with all that a pipeline needs on machines that have only Python, Arrow and Spark.

It contains what an import of the pipeline loads, in a new interpreter, and the modules of a team's
task: your own code with its whole top-level packages, Dovetail with its compiled decoder, and the
libraries of both with their requirements. It leaves out what Spark's own machines have for PySpark:
PySpark, Arrow, pandas, and what these require.

Spark unpacks the archive beside each executor (`spark.archives`), and `PYTHONPATH` leads into it. A
zip on the path (`--py-files`) would not do: Python cannot load a compiled module from a zip.

Compiled code is for one version of Python on one kind of machine: build the archive with a Python
like that of the executors. The same files give the same bytes, so archives can be compared.
"""

import gzip
import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec
from packaging.requirements import Requirement

from dovetail import DISTRIBUTION
from dovetail.errors import InvalidInput, NotFound

ENDING = ".tar.gz"
#: The folder beside the executor that Spark unpacks an archive into.
FOLDER = "dovetail-package"
#: What a machine of a Spark cluster has for PySpark.
SPARK_HAS = ("pyspark", "pyarrow", "pandas")
#: An archive goes to each executor at its start; above this it is a sign of a wrong folder.
PACKAGE_BYTES_MAX = 1024**3
_IMPORT_S_MAX = 300.0
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})

#: Which modules an import loads: the top-level names, and where each was found.
_PROBE = """
import importlib, json, sys
before = set(sys.modules)
import dovetail.teams.tasks.lease
importlib.import_module(sys.argv[1])
found = {}
for name in sorted(set(sys.modules) - before):
    top = sys.modules.get(name.partition(".")[0])
    file, path = getattr(top, "__file__", None), getattr(top, "__path__", ())
    if top is not None and (file or path):
        found[name.partition(".")[0]] = [file, list(path)]
print(json.dumps(found))
"""


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """What is in an archive."""

    path: str
    bytes: int
    python: str
    machine: str
    #: Whether Dovetail's decoder of records is the compiled one.
    compiled: bool
    modules: list[str]
    libraries: dict[str, str]


def spark_settings(archive: Path) -> dict[str, str]:
    """The settings of Spark with which executors use an archive."""
    return {
        "spark.archives": f"{archive}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }


def package(module: str, target: Path, *, folder: Path, libraries: Sequence[str] = ()) -> Package:
    """Writes the archive of a module that is importable in `folder`, with further `libraries`.

    Raises `NotFound` for a library that is not installed, `InvalidInput` for what cannot be packed.
    """
    if not target.name.endswith(ENDING):
        raise InvalidInput(f"{str(target)!r} does not end in {ENDING}, by which Spark knows it")
    loaded = _loaded(module, folder)
    # A stranger's distribution, or an older one of ours, may claim the same top-level name.
    ours = {top: [DISTRIBUTION] for top in ("dovetail", "pyspark_dovetail")}
    named = {**importlib.metadata.packages_distributions(), **ours}
    installed = {top for top, (file, path) in loaded.items() if _is_installed(file, path)}
    wanted = {dist for top in installed for dist in named.get(top, ())}

    spared = _closure(SPARK_HAS, missing_ok=True)
    # Dovetail's other requirements are those of its nodes and commands.
    needed = _closure(wanted - {DISTRIBUTION}, missing_ok=True) | (wanted & {DISTRIBUTION})
    chosen = _closure(libraries) | (needed - spared)
    modules = sorted(top for top in loaded if top not in installed or top not in named)
    files = dict(_own_files({top: loaded[top] for top in modules}))
    versions = {}
    for name in sorted(chosen):
        distribution = importlib.metadata.distribution(name)
        versions[name] = distribution.version
        files |= _library_files(distribution)

    compiled = any(name.startswith("dovetail/spark/_records.") for name in files if _is_code(name))
    about = Package(
        path=str(target),
        bytes=0,
        python=platform.python_version(),
        machine=platform.machine(),
        compiled=compiled,
        modules=modules,
        libraries=versions,
    )
    _write(target, files, about)
    return msgspec.structs.replace(about, bytes=target.stat().st_size)


def _loaded(module: str, folder: Path) -> dict[str, tuple[str | None, list[str]]]:
    """The modules that an import loads, by top-level name, with their files and folders."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, module],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_IMPORT_S_MAX,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InvalidInput(f"module {module!r} cannot be imported from {folder}: {reason}")
    # What the module itself prints comes first.
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        name: (file, path)
        for name, (file, path) in found.items()
        if name not in sys.stdlib_module_names and not name.startswith("_sysconfigdata")
    }


def _is_installed(file: str | None, path: Iterable[str]) -> bool:
    where = [file] if file else list(path)
    return all({"site-packages", "dist-packages"} & set(Path(one).parts) for one in where)


def _closure(names: Iterable[str], *, missing_ok: bool = False) -> set[str]:
    """Libraries with all that they require, by their normal names. Raises `NotFound`."""
    found: set[str] = set()
    waiting = [(name, missing_ok) for name in names]
    while waiting:
        name, optional = waiting.pop()
        try:
            distribution = importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError) as error:
            if optional:
                continue
            raise NotFound(f"no library {name!r} is installed here (pip install it)") from error
        known = str(distribution.metadata["Name"]).lower().replace("_", "-")
        if known in found:
            continue
        found.add(known)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append((requirement.name, True))
    return found


def _own_files(
    modules: Mapping[str, tuple[str | None, list[str]]],
) -> Iterator[tuple[str, Path]]:
    """Names in the archive and files of code that is not installed as a library."""
    for top, (file, path) in modules.items():
        if not path:
            assert file is not None, "a module without a folder is a file"
            yield Path(file).name, Path(file)
        for root in path:
            for folder, folders, names in os.walk(root):
                folders[:] = [one for one in folders if one not in _LEFT_OUT and one[0] != "."]
                inside = PurePosixPath(top, *Path(folder).relative_to(root).parts)
                for name in names:
                    if name[0] != "." and not name.endswith(".pyc"):
                        yield str(inside / name), Path(folder, name)


def _library_files(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    found = {}
    for one in distribution.files or ():
        # Programs lie outside of the folder of libraries, and are of no use there.
        if ".." not in one.parts and one.suffix != ".pyc" and "__pycache__" not in one.parts:
            found[str(PurePosixPath(*one.parts))] = Path(str(one.locate()))
    return found


def _is_code(name: str) -> bool:
    return name.endswith((".so", ".pyd"))


def _write(target: Path, files: Mapping[str, Path], about: Package) -> None:
    sizes = {name: path.stat().st_size for name, path in files.items() if path.is_file()}
    if sum(sizes.values()) > PACKAGE_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InvalidInput(
            f"the archive would hold {sum(sizes.values()):,} bytes; the limit is "
            f"{PACKAGE_BYTES_MAX:,}. The largest file is {files[largest]}"
        )

    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with (
            made.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=3, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for name in sorted(sizes):
                archive.addfile(_entry(name, sizes[name]), io.BytesIO(files[name].read_bytes()))
            text = msgspec.json.encode({**msgspec.to_builtins(about), "path": target.name})
            archive.addfile(_entry("dovetail-package.json", len(text)), io.BytesIO(text))
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o644, 1
    return entry
