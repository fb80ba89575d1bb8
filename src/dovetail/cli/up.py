"""`dovetail up`: a whole node in this process."""

import json
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.options import ConfigOption, SetOption, examples, settings_of
from dovetail.cli.program import program

if TYPE_CHECKING:
    from dovetail.broker import Endpoints
    from dovetail.settings import Settings

EPILOG = examples(
    "dovetail up",
    "dovetail up --data-dir /var/lib/dovetail --port 9192",
    "dovetail up --host 0.0.0.0 --advertised-host queue.example.org",
    "dovetail up --set log.retention_ms=2d --set storage.durability=os",
)

#: Where a client command looks when nothing is said; examples then need no address.
_ADDRESS_DEFAULT = "127.0.0.1:9092"

#: A client on this machine reaches a node that listens everywhere here.
_LOCAL_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}

#: Time to find the advertised host; the node is ready and nobody should wait for a slow resolver.
_RESOLVE_S_MAX = 1.0


def up(
    ctx: typer.Context,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of everything the node stores.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on for Kafka clients.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port for Kafka clients; 0 takes any free one.")
    ] = None,
    advertised_host: Annotated[
        str | None, typer.Option("--advertised-host", help="Host that clients are told to use.")
    ] = None,
    advertised_port: Annotated[
        int | None, typer.Option("--advertised-port", help="Port that clients are told to use.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="Port for HTTP; 0 takes any free one.")
    ] = None,
    no_http: Annotated[
        bool, typer.Option("--no-http", help="Serve no health and metrics over HTTP.")
    ] = False,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the addresses as one line of JSON when ready.")
    ] = False,
) -> None:
    """Run a node: no other service is needed. Ctrl-C stops it.

    Everything acknowledged is on disk in the data folder, and is there again at the next start.
    """
    from dovetail.logging import configure_logging
    from dovetail.settings import Flag

    given = {
        "node.data_dir": ("--data-dir", data_dir),
        "kafka.host": ("--host", host),
        "kafka.port": ("--port", port),
        "kafka.advertised_host": ("--advertised-host", advertised_host),
        "kafka.advertised_port": ("--advertised-port", advertised_port),
        "http.port": ("--http-port", http_port),
        "http.enabled": ("--no-http", False if no_http else None),
    }
    flags = [Flag(name, value, flag) for name, (flag, value) in given.items() if value is not None]
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    configure_logging(format=settings.logging.format, level=settings.logging.level)

    from dovetail.broker import serve
    from dovetail.cli.starting import error_of_address, http_with_flags, prepare_folder

    prepare_folder(settings.node.data_dir)

    def on_ready(endpoints: "Endpoints") -> None:
        if as_json:
            _print_line(settings, endpoints)
        else:
            _print_panel(settings, endpoints)

    try:
        code = serve(settings, on_ready, http=http_with_flags)
    except OSError as error:
        told = error_of_address(error, settings)
        if told is None:
            raise
        raise told from error
    raise typer.Exit(code)


def _advertised(settings: "Settings", endpoints: "Endpoints") -> tuple[str, int]:
    port_bound = int(endpoints.kafka.rpartition(":")[2])
    return settings.kafka.advertised(port_bound=port_bound)


def _address(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_address(kafka: str) -> str:
    """Where a client on this machine finds the node that listens on `kafka`."""
    host, _, port = kafka.rpartition(":")
    return _address(_LOCAL_BY_WILDCARD.get(host, host), port)


def resolves(host: str) -> bool:
    """Whether this machine finds an address for the host, soon enough."""
    found = threading.Event()

    def look() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return
        found.set()

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_RESOLVE_S_MAX)
    return found.is_set()


def _print_line(settings: "Settings", endpoints: "Endpoints") -> None:
    line = {
        "kafka": endpoints.kafka,
        "advertised": _address(*_advertised(settings, endpoints)),
        "http": endpoints.http,
        "data_dir": str(endpoints.data_dir.resolve()),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _print_panel(settings: "Settings", endpoints: "Endpoints") -> None:
    from rich.panel import Panel
    from rich.text import Text

    from dovetail.cli.output import answers

    host, port = _advertised(settings, endpoints)
    hint = "(change it with --advertised-host)"
    if not resolves(host):
        hint = "which this machine cannot find: give --advertised-host"
    durability = "synced to disk before it is acknowledged"
    if settings.storage.durability == "os":
        durability = 'left to the kernel: a power cut can lose records (durability = "os")'
    rows = [
        ("Kafka clients", endpoints.kafka),
        ("clients are told", f"{_address(host, port)}  {hint}"),
        ("health, metrics", endpoints.http or "off"),
        ("data folder", str(endpoints.data_dir.resolve())),
        ("every write is", durability),
    ]
    text = Text()
    for name, value in rows:
        text.append(f"{name:<17}", style="dim").append(f"{value}\n")
    address, call = local_address(endpoints.kafka), program()
    where = "" if address == _ADDRESS_DEFAULT else f" -b {address}"
    text.append("\nTry it in another terminal:\n", style="dim")
    for command in (
        f"{call} topic create hello{where}",
        f"echo 'hello, world' | {call} produce hello{where}",
        f"{call} consume hello{where}",
    ):
        text.append(f"  {command}\n", style="bold")
    text.append("\nCtrl-C stops the node; the data stays.", style="dim")
    console = answers()
    console.print(Panel(text, title="Dovetail is ready", title_align="left", expand=False))
    console.file.flush()
