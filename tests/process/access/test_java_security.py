"""TLS and login by Java's names: stores that keytool made, at a node that asks for both."""

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import RunningNode
from tests.java import need_java
from tests.process.access.certificates import Authority
from tests.process.access.guarded import PASSWORD, guarded_node

from dovetail.errors import InvalidInput, Refused
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.kafka.client.java_security import login_settings
from dovetail.spark.options import ReadOptions
from dovetail.spark.runtime import find_java

STORE = "store-secret"
KEY = "key-secret"
JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
    f'  username="admin" password="{PASSWORD}" ;'
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[RunningNode]:
    node = guarded_node(tmp_path_factory.mktemp("guarded"), authority)
    node.start()
    try:
        yield node
    finally:
        node.kill()


@pytest.fixture(scope="module")
def keytool() -> str:
    need_java()
    found = find_java({}).home / "bin" / "keytool"
    if not found.exists():
        pytest.skip("this Java has no keytool")
    return str(found)


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def truststore(keytool: str, authority: Authority, kind: str, folder: Path) -> dict[str, str]:
    """The settings of a truststore with the authority."""
    if kind == "PEM":
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority.file}
    at = str(folder / f"trust.{kind}")
    given = ["-importcert", "-noprompt", "-alias", "ca", "-file", authority.file]
    run(keytool, *given, "-keystore", at, "-storetype", kind, "-storepass", STORE)
    return {
        "ssl.truststore.type": kind,
        "ssl.truststore.location": at,
        "ssl.truststore.password": STORE,
    }


def keystore(keytool: str, authority: Authority, kind: str, folder: Path) -> dict[str, str]:
    """The settings of a keystore with a certificate of "admin"."""
    files = authority.issue("admin")
    if kind == "PEM":
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": Path(files.certificate).read_text(),
            "ssl.keystore.key": Path(files.key).read_text(),
        }
    bundle, at = folder / f"key.{kind}.p12", str(folder / f"key.{kind}")
    run(
        *("openssl", "pkcs12", "-export", "-name", "me", "-passout", f"pass:{STORE}"),
        *("-in", files.certificate, "-inkey", files.key, "-out", str(bundle)),
    )
    password = KEY if kind == "JKS" else STORE
    run(
        *(keytool, "-importkeystore", "-noprompt", "-srckeystore", str(bundle)),
        *("-srcstoretype", "PKCS12", "-srcstorepass", STORE, "-destkeystore", at),
        *("-deststoretype", kind, "-deststorepass", STORE, "-destkeypass", password),
        *("-srcalias", "me"),
    )
    made = {"ssl.keystore.type": kind, "ssl.keystore.location": at, "ssl.keystore.password": STORE}
    return made | ({"ssl.key.password": KEY} if kind == "JKS" else {})


@pytest.mark.parametrize("kind", ["PEM", "JKS", "PKCS12"])
def test_stores_of_java_let_in(
    guarded: RunningNode, authority: Authority, keytool: str, tmp_path: Path, kind: str
) -> None:
    """T20, F74: a login by a line of JAAS, and a certificate, each with a store of Java; another
    authority, another password and a damaged file are told at once."""
    trust = truststore(keytool, authority, kind, tmp_path)
    by_password = {"security.protocol": "SASL_SSL", "sasl.jaas.config": JAAS} | trust
    by_key = {"security.protocol": "SSL"} | trust | keystore(keytool, authority, kind, tmp_path)
    for settings in (by_password, by_key):
        options = {f"kafka.{name}": value for name, value in settings.items()}
        made = ReadOptions.of({"bootstrap": guarded.bootstrap, "subscribe": "x", **options})
        with closing(KafkaClient(made.brokers)) as client:
            assert client.partitions(["by-java"], create=True)["by-java"]

    stranger = Authority(tmp_path)
    other = by_password | truststore(keytool, stranger, "PEM", tmp_path)
    brokers = Brokers.at(guarded.bootstrap, login_settings(other))
    with closing(KafkaClient(brokers)) as client, pytest.raises(Refused, match="VERIFY_FAILED"):
        client.partitions(None)
    if kind != "PEM":
        for store in ("truststore", "keystore"):
            with pytest.raises(InvalidInput, match="password is wrong"):
                login_settings(by_key | {f"ssl.{store}.password": "another"})
            cut = tmp_path / "cut"
            whole = Path(by_key[f"ssl.{store}.location"]).read_bytes()
            for size_bytes in (0, 3, 20, len(whole) // 2, len(whole) - 1):
                cut.write_bytes(whole[:size_bytes])
                with pytest.raises(InvalidInput, match=rf"ssl\.{store}\.location"):
                    login_settings(by_key | {f"ssl.{store}.location": str(cut)})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sasl.jaas.config": "KafkaClient {};"}, "unknown form or login module"),
        ({"sasl.jaas.config": JAAS.replace("Scram", "Krb5")}, "unknown form or login module"),
        ({"sasl.jaas.config": JAAS.replace("username", "user")}, "lacks a username or a password"),
        ({"sasl.jaas.config": JAAS, "sasl.password": "x"}, "given twice, under two names"),
        ({"ssl.truststore.location": "/nowhere"}, "cannot read ssl.truststore.location"),
        ({"ssl.truststore.location": "a\0b"}, "cannot read ssl.truststore.location"),
        ({"ssl.truststore.location": "/", "ssl.truststore.type": "BKS"}, "JKS, PKCS12 or PEM"),
        ({"ssl.keystore.key": "x"}, "or neither"),
    ],
)
def test_what_cannot_be_used_is_told(settings: dict[str, str], words: str) -> None:
    """T20: with the name of the setting, and no password in the text."""
    with pytest.raises(InvalidInput, match=words) as raised:
        login_settings(settings)
    assert PASSWORD not in str(raised.value)


def test_names_of_java_become_ours() -> None:
    """T20: the mechanism follows from the module, and an empty algorithm turns the check off."""
    plain = JAAS.replace("scram.Scram", "plain.Plain")
    made = login_settings({"sasl.jaas.config": plain, "ssl.endpoint.identification.algorithm": ""})
    assert (made["sasl.mechanism"], made["sasl.password"]) == ("PLAIN", PASSWORD)
    assert made["ssl.endpoint.identification.algorithm"] == "none"
    chosen = login_settings({"sasl.jaas.config": JAAS, "sasl.mechanism": "SCRAM-SHA-256"})
    assert chosen["sasl.mechanism"] == "SCRAM-SHA-256"
