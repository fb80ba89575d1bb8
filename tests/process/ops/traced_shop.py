"""A shop in a process of its own: an order goes through outbox, log, team and timeline."""

import asyncio
import json
import multiprocessing
import sqlite3
import sys
import uuid
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.crew_run import run_crew

import dovetail
from dovetail import tracing
from dovetail.outbox import Producer
from dovetail.teams import Pipeline, Team
from dovetail.teams.envelope import Job, job_of
from dovetail.teams.workers.crew import Crew, Done

SECONDS_MAX = 60


def price(order: dict[str, Any]) -> dict[str, Any]:
    with tracing.span("look up prices"):
        return {**order, "total": 12.5}


async def audit(order: dict[str, Any]) -> dict[str, Any]:
    return order


def checkout(database: str) -> None:
    connection = sqlite3.connect(database)
    with tracing.span("checkout"), connection:
        Producer("orders", backend="db").publish({"id": 7}, key="7", on=connection)
    connection.close()


def record_of(bootstrap: str) -> Any:
    """The record that the relay has sent, as any consumer gets it."""
    group = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, **group})
    consumer.subscribe(["orders"])
    try:
        record = consumer.poll(SECONDS_MAX)
        assert record is not None, "the order did not arrive"
        assert record.error() is None, record.error()
        return record
    finally:
        consumer.close()


def work(record: tuple[bytes, bytes, list[tuple[str, bytes]]], traced: Any) -> Job:
    """Two teams one after the other, in workers as Spark's executors have them."""
    key, value, headers = record
    given = job_of(place="", key=key, value=value, headers=headers)
    for function in (price, audit):
        stage = Pipeline("shop", Team(function.__name__, function)).stages()[0]
        with Crew(stage, traced=traced) as crew:
            (done,) = run_crew(crew, [given])
            assert isinstance(done, Done), done
            given = Job(done.job.key, done.result, traceparent=done.job.traceparent)
    return given


async def remind(bootstrap: str, order: Job) -> None:
    handled = asyncio.Event()
    async with dovetail.connect(bootstrap) as client:
        reminders = client.timeline("reminders")
        await reminders.create()

        @client.consumer("reminders")
        async def handle(message: Any) -> None:
            with tracing.span("mail"):
                assert json.loads(message.body)["total"] == 12.5
            handled.set()

        with tracing.span("bill", parent=order.traceparent):
            await reminders.schedule(order.payload, delay="100ms")
        async with asyncio.timeout(SECONDS_MAX):
            await handled.wait()


def main() -> None:
    bootstrap, database = sys.argv[1:]
    tracing.use(service="shop")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(SECONDS_MAX)
    checkout(database)
    record = record_of(bootstrap)
    given = (record.key(), record.value(), record.headers())
    with multiprocessing.get_context("spawn").Pool(1) as executors:
        priced = executors.apply(work, (given, tracing.in_use()))
    asyncio.run(remind(bootstrap, priced))
    tracing.end()
    print(json.dumps({"headers": [name for name, _ in record.headers()]}))


if __name__ == "__main__":
    main()
