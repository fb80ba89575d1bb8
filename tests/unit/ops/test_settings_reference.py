"""docs/settings.md is made from the code."""

from pathlib import Path

from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.settings import Settings
from dovetail.settings.reference import reference

DOC = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_reference_is_of_today() -> None:
    """U3: `dovetail config reference > docs/settings.md` renews it."""
    assert DOC.read_text() == reference()


def test_the_command_prints_it() -> None:
    """U3, U4: the same page, from the command line."""
    found = CliRunner().invoke(app, ["config", "reference"])
    assert found.exit_code == 0
    assert found.stdout == reference()


def test_every_setting_is_there_with_default_bounds_and_a_sentence() -> None:
    """U3: durations and sizes as people write them; secrets are marked."""
    page = reference()
    for shown in Settings().shown():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{shown.name}` |"))
        assert line.rstrip(" |").endswith("."), f"{shown.name} has no sentence"
    assert "| `log.retention_ms` | `7d` | from -1 |" in page
    assert "| `coordination.lease_ms` | `3s` | 2s to 1m |" in page
    assert "| `kafka.port` | `9092` | 0 to 65535 |" in page
    assert "| `coordination.kind` | `embedded` | `embedded`, `etcd`, `shared` |" in page
    assert "| `storage.segment_bytes` | `256MiB` | 64KiB to 2GiB |" in page
    secret = next(line for line in page.splitlines() if "`outbox.sasl_password`" in line)
    assert secret.endswith("Never shown. |")
