"""The section `security`: TLS, login and access rules of the Kafka listener (R4)."""

import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from dovetail.errors import InvalidSetting
from dovetail.settings.kinds import Section, setting
from dovetail.tls_files import TlsFiles, load_certificate

#: In the order of preference.
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")

#: Longer than any password: a wrong file, such as a device, is not read to its end.
_PASSWORD_LINE_MAX = 4_096


class SecuritySettings(Section):
    """Who may connect, and what they may do."""

    tls_certificate: str = setting(
        "", "File with this node's certificate chain (PEM); empty: no TLS."
    )
    tls_key: str = setting("", "File with the certificate's private key (PEM).")
    tls_ca: str = setting("", "File with the CAs of the certificates of clients and nodes (PEM).")
    tls_clients: Literal["none", "optional", "required"] = setting(
        "none", "Whether clients present a certificate; its common name is the user."
    )
    login: str = setting(
        "",
        "Login mechanisms, separated by commas: scram-sha-512, scram-sha-256, plain (TLS "
        "only). Empty: no login.",
    )
    authorize: bool = setting(
        False, "Whether access rules apply; if so, whatever no rule allows is refused."
    )
    admins: str = setting("admin", "Users that may do everything, separated by commas.")
    admin_password_file: str = setting(
        "", "File whose first line is the first admin's password, for the first start."
    )
    nodes: str = setting(
        "", "Common names of the certificates of this cluster's nodes, separated by commas."
    )

    @field_validator("login")
    @classmethod
    def _check_login(cls, login: str) -> str:
        for name in _names(login):
            if name.upper() not in MECHANISMS:
                known = ", ".join(mechanism.lower() for mechanism in MECHANISMS)
                raise ValueError(f"{name!r} is not a login mechanism; write one of {known}")
        return login

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("set both security.tls_certificate and security.tls_key, or neither")
        if "PLAIN" in self.mechanisms and not self.tls:
            raise ValueError(
                "plain sends the password unencrypted: set security.tls_certificate too"
            )
        if self.tls_clients != "none" and not (self.tls and self.tls_ca):
            raise ValueError(
                "security.tls_clients needs security.tls_certificate, and security.tls_ca to check "
                "the certificates of clients"
            )
        if self.authorize and not self.on:
            raise ValueError(
                "security.authorize needs clients with an identity: set security.login, or "
                "security.tls_clients = 'required'"
            )
        return self

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return bool(self.tls_certificate)

    @property
    def on(self) -> bool:
        """Whether clients have to say who they are."""
        return bool(self.mechanisms) or self.tls_clients == "required"

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The ways to log in, best first."""
        wanted = {name.upper() for name in _names(self.login)}
        return tuple(name for name in MECHANISMS if name in wanted)

    def admin_names(self) -> tuple[str, ...]:
        return _names(self.admins)

    def node_names(self) -> tuple[str, ...]:
        return _names(self.nodes)

    def server_tls(self) -> ssl.SSLContext | None:
        """For the listener; None without TLS. Raises `InvalidSetting`."""
        if not self.tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        if self.tls_clients != "none" or self.tls_ca:
            required = self.tls_clients == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        return context

    def client_tls(self) -> ssl.SSLContext | None:
        """For connections to the other nodes; None without TLS. Raises `InvalidSetting`."""
        if not self.tls:
            return None
        context = ssl.create_default_context()
        self._load(context)
        return context

    def tls_files(self) -> TlsFiles | None:
        """The files of both; None without TLS."""
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_ca) if self.tls else None

    def admin_password(self) -> str | None:
        """What the first admin logs in with at first. Raises `InvalidSetting`."""
        if not self.admin_password_file:
            return None
        try:
            with Path(self.admin_password_file).open(encoding="utf-8") as file:
                password = file.readline(_PASSWORD_LINE_MAX).rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidSetting(
                f"security.admin_password_file {self.admin_password_file}: {reason}"
            ) from error
        if not password:
            raise InvalidSetting(f"{self.admin_password_file} has no password in its first line")
        return password

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        files = f"{self.tls_certificate}, {self.tls_key}"
        try:
            load_certificate(context, self.tls_certificate, self.tls_key)
            if self.tls_ca:
                files = self.tls_ca
                context.load_verify_locations(self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidSetting(f"no usable certificates in {files}: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    names: Iterable[str] = (name.strip() for name in text.split(","))
    return tuple(name for name in names if name)
