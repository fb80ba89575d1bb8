"""The section `http`: health, metrics, the console and its API; and who may use them."""

import ipaddress
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from dovetail.errors import InvalidSetting
from dovetail.settings.kinds import Port, Section, setting

#: Sixteen characters of a random token are beyond guessing over a network; a word is not.
TOKEN_CHARACTERS_MIN = 16
#: A token is a line; a larger file is a wrong one, such as a certificate.
TOKEN_CHARACTERS_MAX = 1024


class HttpSettings(Section):
    """Health, metrics and console over HTTP."""

    enabled: bool = setting(True, "Whether to serve health, metrics and console over HTTP.")
    host: str = setting(
        "127.0.0.1",
        "Address to listen on for HTTP; beyond this machine only with a token.",
        min_length=1,
    )
    port: Port = setting(9080, "Port to listen on for HTTP; 0 takes any free port.")
    token: str = setting("", "Token that gives full access; empty: no sign-in.", secret=True)
    token_file: str = setting(
        "", "File whose first line is the token; use it instead of http.token."
    )
    tls_certificate: str = setting(
        "", "File with the certificate chain for HTTPS (PEM); empty: not encrypted."
    )
    tls_key: str = setting("", "File with that certificate's private key (PEM).")
    metrics_open: bool = setting(False, "Whether /metrics is served without the token.")
    allowed_hosts: str = setting(
        "",
        "Host names, separated by commas, under which browsers may open the console, beside "
        "this machine's own.",
    )

    schema_registry: str = setting(
        "",
        "URL of a schema registry by whose schemas the console shows messages; a user and a "
        "password for it can be in it.",
        secret=True,
    )

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: str) -> str:
        if token:
            _check(token)
        return token

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.token and self.token_file:
            raise ValueError("give http.token or http.token_file, not both")
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("set both http.tls_certificate and http.tls_key, or neither")
        return self

    def secret(self) -> str:
        """The token, of the setting or its file; empty if none is. Raises `InvalidSetting`."""
        if not self.token_file:
            return self.token
        try:
            with Path(self.token_file).open(encoding="ascii") as file:
                token = file.readline(TOKEN_CHARACTERS_MAX + 2).strip()
            _check(token)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidSetting(
                f"http.token_file {self.token_file} does not hold a token: {reason}"
            ) from error
        return token

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address. A name counts if it is localhost."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def host_names(self) -> frozenset[str]:
        """The names of `allowed_hosts`, in lower case."""
        return frozenset(name.strip().lower() for name in self.allowed_hosts.split(",")) - {""}


def _check(token: str) -> None:
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ValueError(
            f"a token has {TOKEN_CHARACTERS_MIN} to {TOKEN_CHARACTERS_MAX} characters, this one "
            f"{len(token)}; make one with: python -c 'import secrets; "
            "print(secrets.token_urlsafe())'"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token has printable ASCII characters only, without spaces")
