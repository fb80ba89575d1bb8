"""Where the brokers are, and how to come in: the settings that go together."""

import pickle

import pytest

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.spark.options import ReadOptions

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "shop",
    "sasl.password": "very secret",
}


def test_what_goes_to_tables_comes_back_from_them() -> None:
    """R4, T9: to workers too, and the password is not shown on the way."""
    brokers = Brokers.at("one:9092,two:9092", LOGIN)
    read = ReadOptions.of({**brokers.for_tables(), "subscribe": "t"})
    assert pickle.loads(pickle.dumps(read)).brokers == brokers
    assert "secret" not in repr(read)
    assert brokers.login().mechanism == "SCRAM-SHA-256"
    assert "secret" not in repr(brokers.login())
    assert brokers.for_librdkafka()["sasl.password"] == "very secret"
    assert Brokers.at("one:9092") == Brokers("one:9092")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.mechanism": "PLAIN"}, "PLAIN sends the password unencrypted"),
        ({"sasl.mechanism": "GSSAPI"}, "it can be SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN"),
        ({"sasl.password": ""}, "SASL_PLAINTEXT needs sasl.password"),
        ({"security.protocol": "PLAINTEXT"}, "use one with SASL"),
        ({"ssl.ca.location": "ca.pem"}, "use one with SSL"),
        ({"linger.ms": "5"}, "'linger.ms' is not a setting of TLS or login"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, str], words: str) -> None:
    """R4: before anything is sent."""
    with pytest.raises(InvalidInput, match=words):
        Brokers.at("one:9092", {**LOGIN, **changes})


def test_files_that_are_not_there_are_named() -> None:
    """R4: where they are used, which may be on another machine."""
    brokers = Brokers.at("one:9092", {"security.protocol": "SSL", "ssl.ca.location": "not/there"})
    with pytest.raises(InvalidInput, match=r"not/there.*No such file"):
        brokers.login()
