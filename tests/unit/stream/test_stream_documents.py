"""The examples in docs/stream.md are code that runs."""

import inspect
import re
from pathlib import Path
from typing import Any

from dovetail.settings.stream import SharedStreamSettings
from dovetail.stream import SharedStream, StreamSettings

DOCUMENT = Path(__file__).parent.parent.parent.parent / "docs" / "stream.md"


def test_the_first_example_makes_settings_and_a_handler() -> None:
    """S1, S10: as it stands there, up to the broker that it would need."""
    code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(code.partition("async with")[0], names)
    names["settings"].check()
    assert inspect.iscoroutinefunction(names["answer"])
    assert "SharedStream.on_kafka" in code
    assert callable(SharedStream.on_kafka)


def test_security_says_who_must_not_write_the_shared_log() -> None:
    """F48, S14: records are signed; where they are not, the topic is for the members alone."""
    section = (DOCUMENT.parent / "security.md").read_text().partition("## Shared streams")[2]
    section = section.partition("\n## ")[0]
    for word in ("coordination_stream_id", "forge", "log_signatures", "access allow"):
        assert word in section


def test_the_table_of_settings_is_complete() -> None:
    """S10: every setting has its place in the table, and the table names no other."""
    table = DOCUMENT.read_text().partition("| source (")[2].partition("\n\n")[0]
    second = [row.split("|")[1] for row in table.splitlines()[2:] for row in [row[1:]]]
    named = {name for cell in second for name in re.findall(r"`([a-z_]+)`", cell)}
    assert named == set(SharedStreamSettings.model_fields)
    assert named == set(StreamSettings.__dataclass_fields__)
