"""Which clients there are, and what each can do: the one table that the scenarios ask.

A client that is not installed skips its tests at home and fails them where CI=true.
"""

import importlib
import os
import shutil
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

import pytest
from tests.compat.drivers.base import Driver


class Feature(Enum):
    """What some clients cannot do."""

    CLIENT_TIMESTAMP = auto()
    EMPTY_VALUE = auto()
    NULL_HEADER = auto()
    RESET_ERROR = auto()
    STATIC_MEMBER = auto()
    TOPICS = auto()
    CONFIGS = auto()
    GROUPS = auto()
    OFFSETS = auto()
    DELETE_GROUP = auto()
    DELETE_RECORDS = auto()


EVERYTHING = frozenset(Feature)


@dataclass(frozen=True, slots=True)
class Client:
    """A foreign client: where its driver is, which program it needs, what it can do."""

    name: str
    driver: str
    features: frozenset[Feature]
    programs: tuple[str, ...] = ()


CLIENTS = {
    client.name: client
    for client in (
        Client("confluent", "confluent.ConfluentDriver", EVERYTHING),
        Client("aiokafka", "aio.AiokafkaDriver", EVERYTHING - {Feature.DELETE_GROUP}),
        Client(
            "kafka-python",
            "kafka_python.KafkaPythonDriver",
            EVERYTHING - {Feature.NULL_HEADER},
        ),
        # kcat takes no timestamps, and it has no admin calls but the listing of metadata.
        Client("kcat", "kcat.KcatDriver", frozenset({Feature.RESET_ERROR}), programs=("kcat",)),
        # Like kafka-python, kafkajs cannot write a header without value; it has no reset policy
        # that fails.
        Client(
            "kafkajs",
            "kafkajs.KafkajsDriver",
            EVERYTHING - {Feature.NULL_HEADER, Feature.RESET_ERROR, Feature.STATIC_MEMBER},
            programs=("node", "npm"),
        ),
    )
}


def names(*features: Feature) -> list[str]:
    """The clients that have all these features."""
    return [name for name, client in CLIENTS.items() if client.features.issuperset(features)]


def clients(*features: Feature) -> pytest.MarkDecorator:
    """Run a test once per client that has all these features; the test asks for `driver`."""
    return pytest.mark.parametrize("driver", names(*features), indirect=True)


def missing(reason: str) -> NoReturn:
    """A tool is not there: skip at home, fail in CI."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (required where CI=true)")
    pytest.skip(reason)


def connect(name: str, bootstrap: str) -> Driver:
    """Make the driver of a client; skips or fails the test when the client is not installed."""
    client = CLIENTS[name]
    for program in client.programs:
        if shutil.which(program) is None:
            missing(f"{name} needs the program {program}")
    module_name, class_name = client.driver.split(".")
    try:
        module = importlib.import_module(f"tests.compat.drivers.{module_name}")
        driver = getattr(module, class_name)(bootstrap)
    except ImportError as error:
        missing(f"{name} is not installed: {error}")
    assert isinstance(driver, Driver)
    return driver
