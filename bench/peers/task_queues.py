"""Task queues on Redis (Celery, Dramatiq, RQ, Huey) and procrastinate on PostgreSQL.

Each is used as its documentation says: tasks are enqueued one by one by the bench, and done by one
worker process, which is timed from its first task to its last and leaves the result in Redis.
`python -m bench.peers.task_queues NAME` is that worker.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import redis

#: A worker that has not finished by then hangs.
WORK_S_MAX = 60.0
_RESULT = "bench:span"

_url = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/0")
_dsn = os.environ.get("BENCH_POSTGRES_DSN", "")
_wanted = int(os.environ.get("BENCH_MESSAGES", "0"))
_lock = threading.Lock()
_seen = 0
_first = 0.0


def count(body: str) -> None:
    """The task: counts, and tells when it was the last."""
    global _seen, _first  # noqa: PLW0603 - a worker process has nothing else
    with _lock:
        if not _seen:
            _first = time.perf_counter()
        _seen += 1
        if _seen == _wanted:
            redis.Redis.from_url(_url).set(_RESULT, time.perf_counter() - _first)


def _celery() -> "tuple[Callable[[str], object], Callable[[], None]]":
    from celery import Celery  # type: ignore[import-untyped]

    app = Celery("bench", broker=_url)
    app.conf.task_ignore_result = True
    task = app.task(count, name="count")

    def work() -> None:
        app.worker_main(
            ["worker", "-P", "solo", "-l", "error", "--without-gossip", "--without-mingle"]
        )

    return task.delay, work


def _dramatiq() -> "tuple[Callable[[str], object], Callable[[], None]]":
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=_url)
    dramatiq.set_broker(broker)
    actor = dramatiq.actor(count)

    def work() -> None:
        worker = dramatiq.Worker(broker, worker_threads=8)
        worker.start()
        threading.Event().wait()

    return actor.send, work


def _rq() -> "tuple[Callable[[str], object], Callable[[], None]]":
    from rq import Queue, SimpleWorker  # type: ignore[import-untyped]

    connection = redis.Redis.from_url(_url)
    queue = Queue(connection=connection)

    def send(body: str) -> object:
        return queue.enqueue("bench.peers.task_queues.count", body)

    def work() -> None:
        SimpleWorker([queue], connection=connection).work(burst=False, logging_level="ERROR")

    return send, work


def _huey() -> "tuple[Callable[[str], object], Callable[[], None]]":
    from huey import RedisHuey  # type: ignore[import-untyped]

    huey = RedisHuey("bench", url=_url, results=False)
    task = huey.task(name="count")(count)

    def work() -> None:
        huey.create_consumer(workers=1, periodic=False, initial_delay=0.01).run()

    return task, work


def _procrastinate() -> "tuple[Callable[[str], object], Callable[[], None]]":
    import procrastinate

    connector = procrastinate.PsycopgConnector(conninfo=_dsn)
    app = procrastinate.App(connector=connector)
    task = app.task(name="count")(count)
    blocking = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=_dsn))
    send = blocking.task(name="count")(count)
    assert task is not None

    opened = []

    def defer(body: str) -> object:
        if not opened:
            opened.append(blocking.open())
        return send.defer(body=body)

    def work() -> None:
        async def serve() -> None:
            async with app.open_async():
                await app.run_worker_async(wait=True, install_signal_handlers=False)

        asyncio.run(serve())

    return defer, work


QUEUES = {
    "Celery": _celery,
    "Dramatiq": _dramatiq,
    "RQ": _rq,
    "Huey": _huey,
    "procrastinate": _procrastinate,
}


def measure(
    name: str, *, redis_url: str, dsn: str = "", messages: int, body: str
) -> tuple[float, float]:
    """Tasks a second enqueued, and done. Raises `ImportError` if the queue is not installed."""
    global _url, _dsn
    _url, _dsn = redis_url, dsn
    client = redis.Redis.from_url(redis_url)
    client.delete(_RESULT)
    send, _ = QUEUES[name]()
    started = time.perf_counter()
    for _ in range(messages):
        send(body)
    enqueued = messages / (time.perf_counter() - started)
    environment = {
        **os.environ,
        "BENCH_REDIS_URL": redis_url,
        "BENCH_POSTGRES_DSN": dsn,
        "BENCH_MESSAGES": str(messages),
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "bench.peers.task_queues", name],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + WORK_S_MAX
        while (span := client.get(_RESULT)) is None:
            if time.monotonic() > deadline or worker.poll() is not None:
                raise RuntimeError(f"the worker of {name} did not finish")
            time.sleep(0.05)
        return enqueued, messages / float(span)  # type: ignore[arg-type]
    finally:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    # Under its own name, which is what the queues know the task by.
    from bench.peers import task_queues  # noqa: PLW0406

    task_queues.QUEUES[sys.argv[1]]()[1]()
