"""The outbox in Django: an app with a migration, and a producer that knows Django's connections.

INSTALLED_APPS = [..., "dovetail.outbox.django"]

from dovetail.outbox.django import DjangoProducer

orders = DjangoProducer("orders")

with transaction.atomic():
    order.save()
    orders.publish({"id": order.id}, key=str(order.id))

    apps.py       the app
    migrations/   the tables, as a migration of Django
"""

from collections.abc import Iterable, Sequence
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.outbox.backends import Backend
from dovetail.outbox.message import Message
from dovetail.outbox.producer import Producer


class DjangoProducer(Producer):
    """A `Producer` on a connection of Django's, by its alias; inside `transaction.atomic`."""

    def __init__(self, topic: str | None = None, *, using: str = "default", **given: Any) -> None:
        super().__init__(topic, **given)
        self._using = using

    def publish_list(
        self, messages: Iterable[Message], *, on: Any = None, backend: str | Backend | None = None
    ) -> list[str]:
        """Raises `InvalidInput` outside of a transaction: there a roll-back would come too late."""
        listed: Sequence[Message] = list(messages)
        chosen = self._chosen(backend)
        if on is None and _writes_to_database(chosen):
            from django.db import connections

            on = connections[self._using]
            if not on.in_atomic_block:
                raise InvalidInput(
                    "publish inside `transaction.atomic()`: outside of one every statement commits "
                    "by itself, so the messages would be sent whatever happens next"
                )
        return super().publish_list(listed, on=on, backend=chosen)


def _writes_to_database(backend: Backend) -> bool:
    from dovetail.outbox.backends import DatabaseBackend

    return isinstance(backend, DatabaseBackend)
