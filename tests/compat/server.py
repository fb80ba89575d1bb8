"""What the fixtures hand to the tests: a server, ways to connect to it, a proxy before it."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tests.compat.drivers.base import Driver, wait_for
from tests.compat.proxy import Proxy

#: The driver of a client by its name.
Connect = Callable[[str], Driver]


class Node(Protocol):
    """What the fixtures of the whole test suite hand out."""

    bootstrap: str

    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...


class TopicMaker(Protocol):
    """Creates a topic with a fresh name and returns the name when clients can use it."""

    def __call__(self, partitions: int = 1, **config: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Proxied:
    """A server behind a proxy; `node` is None for a server that the suite did not start."""

    proxy: Proxy
    direct: str
    node: Node | None


def new_topic(admin: Driver, partitions: int, config: Mapping[str, str]) -> str:
    """Create a topic with a fresh name; returns when its metadata can be had."""
    name = f"compat-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=partitions, config=config)
    wait_for(f"topic {name}", lambda: admin.topics().get(name) == partitions)
    return name
