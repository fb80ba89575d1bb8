"""The effective settings: what was given, checked.

Only the effective values are checked, so a bad value that a stronger place overrides is not an
error, while an unknown name always is. Other programs share only the environment: a variable that
resembles none of ours is ignored.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dovetail.errors import InvalidSetting
from dovetail.settings.given import (
    DEFAULT_ORIGIN,
    ENVIRONMENT_PREFIX,
    Flag,
    Given,
    gather,
    variable_of,
)
from dovetail.settings.kinds import is_secret
from dovetail.settings.sections import Settings

_TYPE_BY_NAME: dict[str, type | None] = {
    f"{section_name}.{field_name}": field.annotation
    for section_name, section in Settings.model_fields.items()
    for field_name, field in type(section.default).model_fields.items()
}
#: From this likeness on, a variable is taken for one of ours that was misspelt.
_MISSPELT_RATIO = 0.7

_SECRETS = frozenset(
    f"{section_name}.{field_name}"
    for section_name, section in Settings.model_fields.items()
    for field_name, field in type(section.default).model_fields.items()
    if is_secret(field.json_schema_extra)
)


def load_settings(
    *,
    flags: Iterable[Flag] = (),
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The settings in force: what `gather` finds, over the defaults.

    Raises `InvalidSetting` for an unknown name, a value that does not fit, or a bad file.
    """
    given = gather(flags=flags, config=config, environment=environment, folder=folder)
    given = {name: item for name, item in given.items() if not _is_foreign(name, item)}
    _check_known(given)
    sections: dict[str, dict[str, object]] = {}
    for name, item in given.items():
        if isinstance(item.value, bool) and _TYPE_BY_NAME[name] is not bool:
            raise InvalidSetting(
                f"{name} = {item.value} ({item.origin}): the setting does not take true or false"
            )
        section_name, _, field_name = name.partition(".")
        if field_name:
            sections.setdefault(section_name, {})[field_name] = item.value

    try:
        settings = Settings.model_validate(sections)
    except ValidationError as error:
        lines = [_explain(detail, given) for detail in error.errors(include_url=False)]
        raise InvalidSetting("\n".join(lines)) from error
    return settings.with_origins({name: item.origin for name, item in given.items()})


def _is_foreign(name: str, item: Given) -> bool:
    """Whether it is somebody else's variable, which only begins like ours.

    One that names a section, or nearly one of our variables, is a setting that was misspelt.
    """
    if item.origin.place != "environment" or name.partition(".")[0] in Settings.model_fields:
        return False
    known = [variable_of(one).removeprefix(ENVIRONMENT_PREFIX) for one in _TYPE_BY_NAME]
    variable = item.origin.name.removeprefix(ENVIRONMENT_PREFIX)
    return not difflib.get_close_matches(variable, known, n=1, cutoff=_MISSPELT_RATIO)


def _check_known(given: Mapping[str, Given]) -> None:
    for name, item in given.items():
        empty_section = name in Settings.model_fields and item.value == {}
        if name in _TYPE_BY_NAME or empty_section:
            continue
        place = item.origin
        if place.place == "environment":
            known = [variable_of(name) for name in _TYPE_BY_NAME]
            raise _unknown(place.name, known, place="in the environment")
        section_name = name.partition(".")[0]
        if place.place == "file" and section_name not in Settings.model_fields:
            nearest = _nearest(section_name, Settings.model_fields)
            raise InvalidSetting(
                f"unknown section [{section_name}] in {place.name}; the nearest known one is "
                f"[{nearest}]"
            )
        raise _unknown(name, _TYPE_BY_NAME, place=f"in {place.name}")


def _unknown(name: str, known: Iterable[str], *, place: str) -> InvalidSetting:
    return InvalidSetting(
        f"unknown setting {name} {place}; the nearest known one is {_nearest(name, known)} "
        "(`dovetail config show` lists all)"
    )


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _explain(detail: ErrorDetails, given: Mapping[str, Given]) -> str:
    reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
    reason = reason.replace("Input should be", "it must be")
    name = ".".join(str(part) for part in detail["loc"][:2])
    if name not in _TYPE_BY_NAME:
        return f"the settings contradict each other: {reason}"
    origin = given[name].origin if name in given else DEFAULT_ORIGIN
    value = "(a secret)" if name in _SECRETS else repr(detail["input"])
    return f"{name} = {value} ({origin}) does not fit: {reason}"
