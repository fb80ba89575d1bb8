"""The pipeline of examples/orders written for Celery with Redis: parse, price, ship or refund.

Each task hands its result to the next one's `delay`, as Celery's users write it. Two processes,
prefetching, results of tasks ignored. `python -m bench.peers.celery_orders` is the worker.
"""

import os
import subprocess
import sys
import time

import redis
from celery import Celery  # type: ignore[import-untyped]
from examples.orders.shop import (
    Order,
    Parsed,
    Priced,
    parse_order,
    price_order,
    refund_order,
    ship_order,
)

#: A worker that has not finished by then hangs.
WORK_S_MAX = 120.0
_FIRST, _DONE = "bench:first", "bench:done"

_url = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0")
app = Celery("orders", broker=_url)
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 100
_redis = redis.Redis.from_url(_url)


@app.task(name="parse")  # type: ignore[untyped-decorator]
def parse(order: Order) -> None:
    """Tells when the first one began."""
    _redis.setnx(_FIRST, time.time())
    price.delay(parse_order(order))


@app.task(name="price")  # type: ignore[untyped-decorator]
def price(order: Parsed) -> None:
    """Routes by the total."""
    priced = price_order(order)
    (ship if priced["total"] > 0 else refund).delay(priced)


@app.task(name="ship")  # type: ignore[untyped-decorator]
def ship(order: Priced) -> None:
    """The end of an order."""
    ship_order(order)
    _redis.incr(_DONE)


@app.task(name="refund")  # type: ignore[untyped-decorator]
def refund(order: Priced) -> None:
    """The other end of an order."""
    refund_order(order)
    _redis.incr(_DONE)


def measure(redis_url: str, orders: list[Order]) -> float:
    """Orders a second, from the first task to the last; enqueuing is not counted."""
    client = redis.Redis.from_url(redis_url)
    sender = Celery("orders", broker=redis_url)
    for order in orders:
        sender.send_task("parse", (order,))
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.peers.celery_orders"],
        env={**os.environ, "BENCH_REDIS_URL": redis_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + WORK_S_MAX
        while int(client.get(_DONE) or 0) < len(orders):
            if time.monotonic() > deadline or worker.poll() is not None:
                raise RuntimeError(f"Celery did {client.get(_DONE)} of {len(orders)} orders")
            time.sleep(0.01)
        took_s = time.time() - float(client.get(_FIRST) or 0)
    finally:
        worker.terminate()
        worker.wait()
        client.close()
    return len(orders) / took_s


if __name__ == "__main__":
    # Under its own name, which is where the tasks are found.
    from bench.peers import celery_orders  # noqa: PLW0406

    options = ["-P", "prefork", "-c", "2", "-l", "error"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    celery_orders.app.worker_main(["worker", *options, *quiet])
