"""A client's login: TLS, and SASL in Kafka's two requests for it.

`conversation` is pure: it yields what to send and receives the answers, so an event loop and a
plain socket share it. Afterwards the node knows the user. With SCRAM the client also knows that the
node knows the password, and the password never leaves this side. It raises `Forbidden` if the node
refuses the login.
"""

import socket
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from tempfile import NamedTemporaryFile
from typing import Final

from dovetail.errors import Forbidden, InvalidInput

SCRAM_SHA_512: Final = "SCRAM-SHA-512"
MECHANISMS: Final = (SCRAM_SHA_512, "SCRAM-SHA-256", "PLAIN")

HANDSHAKE_KEY = 17
HANDSHAKE_VERSION = 1
AUTHENTICATE_KEY = 36
AUTHENTICATE_VERSION = 1

#: Settings that say how to come in, by their names in librdkafka.
SETTINGS: Final = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: Settings that take one of a few words.
_WORDS: Final = {
    "ssl.endpoint.identification.algorithm": ("https", "none"),
    "enable.ssl.certificate.verification": ("true", "false"),
}

#: A request to send: its key, its version and its body. What is behind the correlation id of its
#: answer is sent back.
Conversation = Generator[tuple[int, int, bytes], memoryview, None]


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """How a connection is encrypted, and which user logs in on it; neither by default."""

    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = SCRAM_SHA_512

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "ClientLogin":
        """Of `SETTINGS`. Raises `InvalidInput`."""
        given = checked(settings)
        protocol = given.get("security.protocol", _PROTOCOLS[0])
        tls = _tls_of(given) if protocol.endswith("SSL") else None
        if not protocol.startswith("SASL_"):
            return cls(tls)
        mechanism = given.get("sasl.mechanism", SCRAM_SHA_512)
        return cls(tls, given["sasl.username"], given["sasl.password"], mechanism)

    def hint(self, error: Exception) -> str:
        """What to look at when a node hangs up or cannot be understood; empty if that is plain."""
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return ""
        if isinstance(error, ssl.SSLCertVerificationError):
            return "Does client.tls_ca name the authority that signed its certificate?"
        # A node that expects no TLS ends the handshake, in words or without.
        handshake = isinstance(error, ssl.SSLError) or (
            isinstance(error, ConnectionResetError) and not str(error)
        )

        questions = []
        if self.tls is not None and handshake:
            questions.append("Does the node speak TLS at all (client.tls is on)?")
        if self.tls is None:
            questions.append("Does the node want TLS (client.tls)?")
        if not self.user and not handshake:
            questions.append("Does it want a login (client.user)?")
        questions.append("Is it the port for Kafka clients, and not the one for HTTP?")
        return " ".join(questions)


#: Neither TLS nor a login.
NOBODY: Final = ClientLogin()


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings, if they go together. Raises `InvalidInput`."""
    for name in settings:
        if name not in SETTINGS:
            raise InvalidInput(
                f"{name!r} is not a setting of TLS or login; known are {', '.join(SETTINGS)}"
            )
    protocol = settings.get("security.protocol", _PROTOCOLS[0])
    if protocol not in _PROTOCOLS:
        raise InvalidInput(f"security.protocol is {protocol!r}; it can be {_one_of(_PROTOCOLS)}")

    for name, words in _WORDS.items():
        if settings.get(name, words[0]) not in words:
            raise InvalidInput(f"{name} is {settings[name]!r}; it can be {_one_of(words)}")

    for name in settings:
        kind, _, _ = name.partition(".")
        if kind in ("ssl", "sasl") and kind.upper() not in protocol:
            raise InvalidInput(
                f"{name} is given, but security.protocol is {protocol}; use one with {kind.upper()}"
            )

    if "SASL" in protocol:
        for name in ("sasl.username", "sasl.password"):
            if not settings.get(name):
                raise InvalidInput(f"security.protocol {protocol} needs {name}")
        mechanism = settings.get("sasl.mechanism", SCRAM_SHA_512)
        if mechanism not in MECHANISMS:
            raise InvalidInput(f"sasl.mechanism is {mechanism!r}; it can be {_one_of(MECHANISMS)}")
        if mechanism == "PLAIN" and protocol != "SASL_SSL":
            raise InvalidInput(
                "PLAIN sends the password unencrypted; set security.protocol to SASL_SSL"
            )
    return dict(settings)


def conversation(login: ClientLogin) -> Conversation:
    """What to send on a new connection; nothing without a login."""
    if not login.user:
        return
    name = login.mechanism.encode()
    answer = yield HANDSHAKE_KEY, HANDSHAKE_VERSION, len(name).to_bytes(2, "big") + name
    if int.from_bytes(answer[:2], "big", signed=True) != 0:
        raise _refused(f"the node does not offer {login.mechanism}; see security.login there")
    if login.mechanism == "PLAIN":
        yield from _authenticate(f"\0{login.user}\0{login.password}")
        return
    from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

    client = ScramClient([login.mechanism], login.user, login.password)
    try:
        client.set_server_first((yield from _authenticate(client.get_client_first())))
        client.set_server_final((yield from _authenticate(client.get_client_final())))
    except ScramException as error:
        raise _refused(f"the login of {login.user!r} failed: {error}") from error


def _authenticate(message: str) -> Generator[tuple[int, int, bytes], memoryview, str]:
    sent = message.encode()
    answer = yield AUTHENTICATE_KEY, AUTHENTICATE_VERSION, len(sent).to_bytes(4, "big") + sent
    error = int.from_bytes(answer[:2], "big", signed=True)
    at = 4 + max(0, int.from_bytes(answer[2:4], "big", signed=True))
    if error != 0:
        raise _refused(bytes(answer[4:at]).decode(errors="replace") or f"error {error}")
    size = int.from_bytes(answer[at : at + 4], "big", signed=True)
    return bytes(answer[at + 4 : at + 4 + size]).decode(errors="replace")


def _tls_of(given: Mapping[str, str]) -> ssl.SSLContext:
    # Without a password OpenSSL would ask for one on the terminal.
    password = given.get("ssl.key.password", "")
    try:
        tls = ssl.create_default_context(
            cafile=given.get("ssl.ca.location"), cadata=given.get("ssl.ca.pem")
        )
        if "ssl.certificate.location" in given:
            key = given.get("ssl.key.location")
            tls.load_cert_chain(given["ssl.certificate.location"], key, password)
        elif "ssl.certificate.pem" in given:
            _load_pem(tls, given["ssl.certificate.pem"], given.get("ssl.key.pem", ""), password)
    except (OSError, ValueError) as error:
        files = [name for name in given if name.endswith((".location", ".pem"))]
        shown = [given[name] if name.endswith(".location") else name for name in files]
        raise InvalidInput(
            f"cannot use the TLS files ({', '.join(shown)}): "
            f"{getattr(error, 'strerror', None) or error}"
        ) from error
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    if given.get("ssl.endpoint.identification.algorithm") == "none":
        tls.check_hostname = False
    if given.get("enable.ssl.certificate.verification") == "false":
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _load_pem(tls: ssl.SSLContext, certificate: str, key: str, password: str) -> None:
    """OpenSSL reads a certificate from files alone: two that nobody else can read, and are gone."""
    with NamedTemporaryFile("w") as first, NamedTemporaryFile("w") as second:
        for file, text in ((first, certificate), (second, key)):
            file.write(text)
            file.flush()
        tls.load_cert_chain(first.name, second.name, password)


def _one_of(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _refused(why: str) -> Forbidden:
    return Forbidden(why, kind="cluster")
