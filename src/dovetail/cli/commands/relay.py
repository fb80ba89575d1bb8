"""`dovetail relay`: a process that sends the messages of an outbox."""

import os
import signal
import threading
from typing import Annotated

import typer

from dovetail import tracing
from dovetail.background import on_signals
from dovetail.cli.options import (
    ConfigOption,
    DatabaseOption,
    MetricsHostOption,
    MetricsPortOption,
    SetOption,
    examples,
    flags_of,
    metrics_flags,
    settings_of,
)
from dovetail.exposition import serve_metrics
from dovetail.logging import configure_logging, get_logger
from dovetail.outbox.relay import Relay, relay_of

EPILOG = examples(
    "dovetail relay --database postgresql://app@localhost/shop",
    "dovetail relay --database mysql://app@db/shop --bootstrap kafka-1:9092 --workers 4",
    "DOVETAIL_OUTBOX_DATABASE=sqlite:///shop.db dovetail relay --metrics-port 9101",
)

#: The system gives a signal to any thread, but Python acts on it in this one, when it next runs:
#: a wait without an end could outlast it, for instance after a pause.
_SIGNAL_S = 0.5


def relay(
    ctx: typer.Context,
    database: DatabaseOption = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            "--kafka",
            "-k",
            metavar="HOST:PORT",
            help="Kafka to send to; default: outbox.kafka, else the node of client.bootstrap.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-w", min=1, help="Topics, or shards, at once; default: outbox.workers."
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Send what applications publish in their transactions. Ctrl-C or SIGTERM stops it.

    The relay finishes the batch in flight and releases its lock. A second signal ends it at once,
    which loses nothing either.
    """
    flags = flags_of(
        {
            "outbox.database": ("--database", database),
            "outbox.kafka": ("--bootstrap", kafka),
            "outbox.workers": ("--workers", workers),
        }
    )
    flags += metrics_flags(metrics_port, metrics_host)
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    configure_logging(format=settings.logging.format, level=settings.logging.level)
    log = get_logger("outbox")
    tracing.use(settings.tracing, service="dovetail-relay")

    running = relay_of(settings)
    stopping = stop_on_signals(running)
    running.start()
    if settings.metrics.enabled:
        where = settings.metrics
        server = serve_metrics(running.metrics.registry, where.host, where.port)
        log.info("metrics served", url=server.url, port=server.port)
    log.info("relay started", workers=running.options.workers, kafka=settings.outbox_bootstrap())

    while not stopping.wait(_SIGNAL_S):
        pass
    while not running.join(_SIGNAL_S):
        pass
    tracing.end()
    log.info("relay stopped")


def stop_on_signals(running: Relay) -> threading.Event:
    """The first SIGTERM or SIGINT asks the relay to stop, a second one ends the process."""
    stopping = threading.Event()

    def stop(number: int) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()
        running.request_stop()

    on_signals(stop, signal.SIGTERM, signal.SIGINT)
    return stopping
