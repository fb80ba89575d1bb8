"""What was given, and where: flags, environment, file; and which one wins.

Each place is read into the same shape, a raw value and its origin by `section.name`. A stronger
place overrides the weaker ones. Nothing is checked here, so this module needs no section and no
pydantic; `sources` checks the result.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dovetail.errors import InvalidSetting

ENVIRONMENT_PREFIX = "DOVETAIL_"
CONFIG_VARIABLE = "DOVETAIL_CONFIG"
CONFIG_PATH_DEFAULT = Path("dovetail.toml")

#: A settings file is a page or two; a larger one is a wrong file, such as a log or a database.
CONFIG_BYTES_MAX = 1024 * 1024

#: What Kubernetes puts into the environment for a service named `dovetail` or `dovetail-kafka`.
#: `DOVETAIL_KAFKA_PORT` is one with a URL, and a setting with a number.
_SERVICE_LINK = re.compile(
    r".*_SERVICE_HOST=|.*_SERVICE_PORT(_[A-Z0-9_]+)?=|.*_PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?="
    r"|.*_PORT=(tcp|udp|sctp)://"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was given: the place, and its name there (a flag, a variable or a path)."""

    place: Literal["flag", "environment", "file", "default"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.place} {self.name}" if self.name else self.place


DEFAULT_ORIGIN = Origin("default")


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting given on the command line: `flag` is how it was spelled there."""

    name: str
    value: object
    flag: str


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value, and where it was given."""

    value: object
    origin: Origin


def gather(
    *,
    flags: Iterable[Flag] = (),
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> dict[str, Given]:
    """Everything that was given, by `section.name`: flag > environment > file.

    `environment` is the process's own if not given; `folder` is where the default file is looked
    for, the working folder if not given. A section that the file names and leaves empty is there by
    its name, an unknown variable by its own. Links to Kubernetes services are left out.

    Raises `InvalidSetting` for a file that cannot be read and a flag that is given twice.
    """
    environment = os.environ if environment is None else environment
    path, asked_by = _config_path(config, environment, folder)
    return {
        **(_from_file(path, asked_by) if path else {}),
        **_from_environment(environment),
        **_from_flags(flags),
    }


def parse_assignment(text: str) -> Flag:
    """The flag of `--set section.name=value`. Raises `InvalidSetting` if it has another form."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise InvalidSetting(
            f"--set {text!r} is not an assignment; write --set section.name=value, "
            "for example --set log.retention_ms=2d"
        )
    return Flag(name, value.strip(), f"--set {name}")


def variable_of(name: str) -> str:
    """The environment variable of `section.name`."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def _config_path(
    config: Path | None, environment: Mapping[str, str], folder: Path | None
) -> tuple[Path | None, str]:
    if config is not None:
        return config, "--config"
    from_environment = environment.get(CONFIG_VARIABLE)
    if from_environment:
        return Path(from_environment), CONFIG_VARIABLE
    path = folder / CONFIG_PATH_DEFAULT if folder else CONFIG_PATH_DEFAULT
    # One that is there and cannot be read is not one that is missing: whoever put a link or a
    # mounted folder there does not want the defaults.
    return (path if os.path.lexists(path) else None), "working folder"


def _from_file(path: Path, asked_by: str) -> dict[str, Given]:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # A name with NUL is none.
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidSetting(
            f"cannot read the settings file {path} (named by {asked_by}): {reason}"
        ) from error
    if len(content) > CONFIG_BYTES_MAX:
        raise InvalidSetting(
            f"{path} is larger than {CONFIG_BYTES_MAX} bytes; this is not a settings file"
        )
    try:
        # Some editors begin each file with a mark of its encoding.
        tables = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # Also numbers and lists without end.
        raise InvalidSetting(f"{path} is not valid TOML: {error}") from error

    origin = Origin("file", str(path))
    given: dict[str, Given] = {}
    for section_name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidSetting(
                f"{section_name} in {path} is a value; write it as a section: [{section_name}]"
            )
        given |= {f"{section_name}.{name}": Given(value, origin) for name, value in table.items()}
        if not table:
            given[section_name] = Given(table, origin)
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if _SERVICE_LINK.match(f"{variable}={value}"):
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".", 1)
        well_formed = "." in name and variable_of(name) == variable
        origin = Origin("environment", variable)
        given[name if well_formed else variable] = Given(value, origin)
    return given


def _from_flags(flags: Iterable[Flag]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for flag in flags:
        if flag.name in given:
            raise InvalidSetting(
                f"{flag.name} is given twice: by {given[flag.name].origin.name} and by {flag.flag}"
            )
        given[flag.name] = Given(flag.value, Origin("flag", flag.flag))
    return given
