"""Translates the TLS and login settings of Java's Kafka clients to librdkafka's names.

Java keeps authorities in a *truststore* and its own certificate in a *keystore*, as `JKS`, `PKCS12`
or `PEM` (a file, or the text itself), and the user in a line of JAAS. The result is in PEM and
librdkafka's names, for every client alike (`dovetail.wire.login.SETTINGS`). Files are read once,
here, so only the process that calls this needs them.

Every error is an `InvalidInput` that names the setting.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dovetail.errors import InvalidInput
from dovetail.kafka.client import java_keystore
from dovetail.wire.login import SETTINGS

_TRUST: Final = tuple(
    f"ssl.truststore.{word}" for word in ("location", "type", "password", "certificates")
)
_KEYS: Final = tuple(
    f"ssl.keystore.{word}" for word in ("location", "type", "password", "certificate.chain", "key")
)
#: Every setting that is understood: librdkafka's, and Java's.
SECURITY: Final = (*SETTINGS, "sasl.jaas.config", *_TRUST, *_KEYS)

_MODULES: Final = {"ScramLoginModule": "SCRAM-SHA-512", "PlainLoginModule": "PLAIN"}
_EXAMPLE: Final = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="shop" password="...";'
)
#: A module of Java and a flag; then pairs of a name and a value up to a semicolon.
_JAAS: Final = re.compile(r"\s*([\w.$]+)\s+\w+\s+([^;].*?)\s*;\s*", re.DOTALL)
_PAIR: Final = re.compile(r"([\w.]+)\s*=\s*(?:\"([^\"]*)\"|([^\s;\"]+))")


def login_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of `SECURITY` as settings of `SETTINGS`. Raises `InvalidInput`."""
    made = {name: text for name, text in given.items() if name in SETTINGS and text.strip()}
    # Java turns the check of host names off by an empty text.
    if given.get("ssl.endpoint.identification.algorithm") == "":
        made["ssl.endpoint.identification.algorithm"] = "none"

    more = _user(given) | _authorities(given) | _certificate(given)
    twice = sorted(set(more) & set(made) - {"ssl.key.password", "sasl.mechanism"})
    if twice:
        raise InvalidInput(
            f"{' and '.join(twice)} are given twice, under two names; give each once"
        )
    return more | made


def _user(given: Mapping[str, str]) -> dict[str, str]:
    line = given.get("sasl.jaas.config")
    if line is None:
        return {}
    found = _JAAS.fullmatch(line)
    module = found[1].rpartition(".")[2] if found else ""
    if found is None or module not in _MODULES:
        # Its text is not shown: there is a password in it.
        raise InvalidInput(
            f"sasl.jaas.config has an unknown form or login module; write {_EXAMPLE}"
        )
    values = {name: quoted or plain for name, quoted, plain in _PAIR.findall(found[2])}
    if not values.get("username") or not values.get("password"):
        raise InvalidInput(f"sasl.jaas.config lacks a username or a password; write {_EXAMPLE}")

    return {
        "sasl.mechanism": _MODULES[module],
        "sasl.username": values["username"],
        "sasl.password": values["password"],
    }


def _authorities(given: Mapping[str, str]) -> dict[str, str]:
    text = given.get("ssl.truststore.certificates")
    if text is not None:
        return {"ssl.ca.pem": text}
    if "ssl.truststore.location" not in given:
        return {}
    kind, data = _file(given, "ssl.truststore")
    if kind == "PEM":
        return {"ssl.ca.pem": data.decode("ascii", "replace")}
    opened = java_keystore.opened(
        data, kind, given.get("ssl.truststore.password"), what="ssl.truststore.location"
    )
    if not opened.authorities:
        raise InvalidInput("ssl.truststore.location holds no certificate")
    return {"ssl.ca.pem": opened.authorities}


def _certificate(given: Mapping[str, str]) -> dict[str, str]:
    chain, key = given.get("ssl.keystore.certificate.chain"), given.get("ssl.keystore.key")
    if chain is not None or key is not None:
        if chain is None or key is None:
            raise InvalidInput(
                "give both ssl.keystore.certificate.chain and ssl.keystore.key, or neither"
            )
        return {"ssl.certificate.pem": chain, "ssl.key.pem": key}
    if "ssl.keystore.location" not in given:
        return {}
    kind, data = _file(given, "ssl.keystore")
    if kind == "PEM":
        text = data.decode("ascii", "replace")
        return {"ssl.certificate.pem": text, "ssl.key.pem": text}
    opened = java_keystore.opened(
        data,
        kind,
        given.get("ssl.keystore.password"),
        key_password=given.get("ssl.key.password"),
        what="ssl.keystore.location",
    )
    if not opened.key:
        raise InvalidInput("ssl.keystore.location holds no private key")
    return {"ssl.certificate.pem": opened.chain, "ssl.key.pem": opened.key}


def _file(given: Mapping[str, str], store: str) -> tuple[str, bytes]:
    """The kind of a store and what its file holds; Java's default is JKS, which reads both."""
    kind = given.get(f"{store}.type", "JKS").upper()
    if kind not in ("JKS", "PKCS12", "PEM"):
        raise InvalidInput(f"{store}.type is {kind!r}; it can be JKS, PKCS12 or PEM")
    try:
        return kind, Path(given[f"{store}.location"]).read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {store}.location: {error}") from error
