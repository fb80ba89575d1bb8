"""What cannot be meant is refused when the node starts."""

import pytest

from dovetail.errors import InvalidSetting
from dovetail.settings import Flag, load_settings


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"login": "plain"}, "plain sends the password unencrypted"),
        ({"login": "kerberos"}, "not a login mechanism"),
        ({"tls_certificate": "a.pem"}, "or neither"),
        ({"authorize": "true"}, "needs clients with an identity"),
        ({"tls_clients": "required"}, "needs security.tls_certificate"),
    ],
)
def test_contradictions(given: dict[str, str], told: str) -> None:
    """R4, U7: with what to do."""
    flags = [Flag(f"security.{name}", value, "--set") for name, value in given.items()]
    with pytest.raises(InvalidSetting, match=told):
        load_settings(flags=flags, environment={})


def test_files_that_are_no_certificates() -> None:
    """R4, U7: named, before anything is served."""
    flags = [
        Flag("security.tls_certificate", "/nowhere/a.pem", "--set"),
        Flag("security.tls_key", "/nowhere/a.key", "--set"),
    ]
    settings = load_settings(flags=flags, environment={})
    with pytest.raises(InvalidSetting, match=r"/nowhere/a\.pem"):
        settings.security.server_tls()
