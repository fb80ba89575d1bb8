"""The section `logging`: what a process logs."""

from typing import Literal

from dovetail.settings.kinds import Section, setting


class LoggingSettings(Section):
    """What a process logs."""

    format: Literal["auto", "text", "json"] = setting(
        "auto", "'text' for people, 'json' for programs; 'auto': text on a terminal, else json."
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Lowest level that is logged."
    )
