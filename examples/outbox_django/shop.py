"""A shop with Django in one file: `transaction.atomic` covers the order and its event.

dovetail up &                                        # a Kafka for every client
export DJANGO_SETTINGS_MODULE=examples.outbox_django.settings
python -m django migrate                             # makes the outbox's tables too
dovetail relay --database sqlite:///shop.sqlite3 &
python -m examples.outbox_django.shop 12.5
dovetail consume orders
"""

import os
import sys

import django
from django.db import connection, transaction

from dovetail.outbox.django import DjangoProducer

orders = DjangoProducer("orders", backend="db")


def create_order(total: float) -> int:
    """Saves an order and publishes it; a negative one is rolled back with its event."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, total float)")
            cursor.execute("SELECT coalesce(max(id), 0) + 1 FROM orders")
            number = int(cursor.fetchone()[0])
            cursor.execute("INSERT INTO orders (id, total) VALUES (%s, %s)", [number, total])
        orders.publish({"id": number, "total": total}, key=str(number))
        if total < 0:
            raise ValueError("the order is rolled back, and so is its event")
    return number


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.outbox_django.settings")
    django.setup()
    print(f"order {create_order(float(sys.argv[1]))}")
