"""Where settings come from: flags, environment, file; and which one wins.

Each place is read into the same shape, a raw value and its origin by `section.name`. The places
are laid over each other from the weakest to the strongest, and only the result is checked, so a
bad value that a stronger place replaces is no error, while an unknown name always is.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dovetail.errors import InvalidSetting
from dovetail.settings.kinds import is_secret
from dovetail.settings.sections import DEFAULT_ORIGIN, Origin, Settings

ENVIRONMENT_PREFIX = "DOVETAIL_"
CONFIG_VARIABLE = "DOVETAIL_CONFIG"
CONFIG_PATH_DEFAULT = Path("dovetail.toml")

#: A settings file is a page or two; a larger one is a wrong file, such as a log or a database.
CONFIG_BYTES_MAX = 1024 * 1024

_TYPE_BY_NAME: dict[str, type | None] = {
    f"{section_name}.{field_name}": field.annotation
    for section_name, section in Settings.model_fields.items()
    for field_name, field in type(section.default).model_fields.items()
}
_SECRETS = frozenset(
    f"{section_name}.{field_name}"
    for section_name, section in Settings.model_fields.items()
    for field_name, field in type(section.default).model_fields.items()
    if is_secret(field.json_schema_extra)
)


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting given on the command line: `flag` is how it was spelled there."""

    name: str
    value: object
    flag: str


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    origin: Origin


def load_settings(
    *,
    flags: Iterable[Flag] = (),
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The settings in force: flag > environment > file > default.

    `environment` is the process's own if not given; `folder` is where the default file is looked
    for, the working folder if not given.

    Raises `InvalidSetting` for an unknown name, a value that does not fit, or a bad file.
    """
    environment = os.environ if environment is None else environment
    path, asked_by = _config_path(config, environment, folder)
    given = {
        **(_from_file(path, asked_by) if path else {}),
        **_from_environment(environment),
        **_from_flags(flags),
    }
    sections: dict[str, dict[str, object]] = {}
    for name, item in given.items():
        if isinstance(item.value, bool) and _TYPE_BY_NAME[name] is not bool:
            raise InvalidSetting(
                f"{name} = {item.value} ({item.origin}): the setting does not take true or false"
            )
        section_name, _, field_name = name.partition(".")
        sections.setdefault(section_name, {})[field_name] = item.value

    try:
        settings = Settings.model_validate(sections)
    except ValidationError as error:
        lines = [_explain(detail, given) for detail in error.errors(include_url=False)]
        raise InvalidSetting("\n".join(lines)) from error
    return settings.with_origins({name: item.origin for name, item in given.items()})


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


def _config_path(
    config: Path | None, environment: Mapping[str, str], folder: Path | None
) -> tuple[Path | None, str]:
    if config is not None:
        return config, "--config"
    from_environment = environment.get(CONFIG_VARIABLE)
    if from_environment:
        return Path(from_environment), CONFIG_VARIABLE
    path = folder / CONFIG_PATH_DEFAULT if folder else CONFIG_PATH_DEFAULT
    return (path if path.is_file() else None), "working folder"


def _from_file(path: Path, asked_by: str) -> dict[str, _Given]:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSetting(
            f"cannot read the settings file {path} (named by {asked_by}): {error.strerror}"
        ) from error
    if len(content) > CONFIG_BYTES_MAX:
        raise InvalidSetting(
            f"{path} is larger than {CONFIG_BYTES_MAX} bytes, so it is not a settings file"
        )
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path} is not valid TOML: {error}") from error

    origin = Origin("file", str(path))
    given: dict[str, _Given] = {}
    for section_name, table in tables.items():
        if section_name not in Settings.model_fields:
            nearest = _nearest(section_name, Settings.model_fields)
            raise InvalidSetting(
                f"unknown section [{section_name}] in {path}; the nearest known one is [{nearest}]"
            )
        if not isinstance(table, dict):
            raise InvalidSetting(
                f"{section_name} in {path} is a value; write it as a section: [{section_name}]"
            )
        for field_name, value in table.items():
            name = f"{section_name}.{field_name}"
            if name not in _TYPE_BY_NAME:
                raise _unknown(name, _TYPE_BY_NAME, place=f"in {path}")
            given[name] = _Given(value, origin)
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    name_by_variable = {variable_of(name): name for name in _TYPE_BY_NAME}
    given: dict[str, _Given] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        if variable not in name_by_variable:
            raise _unknown(variable, name_by_variable, place="in the environment")
        given[name_by_variable[variable]] = _Given(value, Origin("environment", variable))
    return given


def _from_flags(flags: Iterable[Flag]) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for flag in flags:
        if flag.name not in _TYPE_BY_NAME:
            raise _unknown(flag.name, _TYPE_BY_NAME, place=f"in {flag.flag}")
        if flag.name in given:
            raise InvalidSetting(
                f"{flag.name} is given twice: by {given[flag.name].origin.name} and by {flag.flag}"
            )
        given[flag.name] = _Given(flag.value, Origin("flag", flag.flag))
    return given


def variable_of(name: str) -> str:
    """The environment variable of `section.name`."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def _unknown(name: str, known: Iterable[str], *, place: str) -> InvalidSetting:
    return InvalidSetting(
        f"unknown setting {name} {place}; the nearest known one is {_nearest(name, known)} "
        "(`dovetail config show` lists all)"
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _explain(detail: ErrorDetails, given: Mapping[str, _Given]) -> str:
    reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
    reason = reason.replace("Input should be", "it must be")
    name = ".".join(str(part) for part in detail["loc"][:2])
    if name not in _TYPE_BY_NAME:
        return f"the settings contradict each other: {reason}"
    origin = given[name].origin if name in given else DEFAULT_ORIGIN
    value = "(a secret)" if name in _SECRETS else repr(detail["input"])
    return f"{name} = {value} ({origin}) does not fit: {reason}"
