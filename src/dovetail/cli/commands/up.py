"""`dovetail up`: a whole node in this process."""

import json
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from dovetail.cli.options import ConfigOption, SetOption, examples, settings_of
from dovetail.cli.program import program

if TYPE_CHECKING:
    from dovetail.node import Endpoints
    from dovetail.settings import Flag, Settings

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


DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Folder of everything the node stores."),
]
HostOption = Annotated[
    str | None,
    typer.Option("--host", metavar="HOST", help="Address to listen on for Kafka clients."),
]
PortOption = Annotated[
    int | None,
    typer.Option("--port", metavar="PORT", help="Port for Kafka clients; 0 takes any free one."),
]
AdvertisedHostOption = Annotated[
    str | None,
    typer.Option("--advertised-host", metavar="HOST", help="Host that clients are told to use."),
]
AdvertisedPortOption = Annotated[
    int | None,
    typer.Option("--advertised-port", metavar="PORT", help="Port that clients are told to use."),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option("--http-port", metavar="PORT", help="Port for HTTP; 0 takes any free one."),
]
NoHttpOption = Annotated[
    bool, typer.Option("--no-http", help="Serve no health and metrics over HTTP.")
]
ReadyJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the addresses as one line of JSON when ready.")
]


def up(
    ctx: typer.Context,
    data_dir: DataDirOption = None,
    host: HostOption = None,
    port: PortOption = None,
    advertised_host: AdvertisedHostOption = None,
    advertised_port: AdvertisedPortOption = None,
    http_port: HttpPortOption = None,
    no_http: NoHttpOption = False,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: ReadyJsonOption = False,
) -> None:
    """Run a single node, with no other service beside it. Ctrl-C stops it.

    Everything acknowledged is on disk in the data folder, and is there again at the next start.
    """
    flags = door_flags(
        data_dir=data_dir,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        http_port=http_port,
        no_http=no_http,
    )
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    run_node(settings, as_json=as_json)


def door_flags(
    *,
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    advertised_host: str | None,
    advertised_port: int | None,
    http_port: int | None,
    no_http: bool,
) -> list["Flag"]:
    """The settings behind the flags that every command that runs a node has."""
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
    return [Flag(name, value, flag) for name, (flag, value) in given.items() if value is not None]


def run_node(settings: "Settings", *, as_json: bool) -> NoReturn:
    """Runs a node in this process until it is told to stop, then exits with its code."""
    from dovetail.logging import configure_logging

    configure_logging(format=settings.logging.format, level=settings.logging.level)

    from dovetail.cli.starting import error_of_address, http_with_flags, prepare_folder
    from dovetail.node import serve

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
        *_place_in_cluster(settings),
        ("Kafka clients", endpoints.kafka),
        ("clients are told", f"{_address(host, port)}  {hint}"),
        ("health, metrics", endpoints.http or "off"),
        ("data folder", str(endpoints.data_dir.resolve())),
        ("every write is", durability),
    ]
    text = Text()
    for name, value in rows:
        text.append(f"{name:<17}", style="dim").append(f"{value}\n")
    if "broker" in settings.node.roles.split(","):
        text.append("\nTry it in another terminal:\n", style="dim")
        for command in _commands_to_try(endpoints):
            text.append(f"  {command}\n", style="bold")
    text.append("\nCtrl-C stops the node; the data stays.", style="dim")
    console = answers()
    console.print(Panel(text, title="Dovetail is ready", title_align="left", expand=False))
    console.file.flush()


def _place_in_cluster(settings: "Settings") -> list[tuple[str, str]]:
    if settings.coordination.kind == "embedded":
        return []
    node = settings.node
    return [
        ("node", f"{node.name}, number {node.node_id}: {node.roles}"),
        ("etcd", settings.coordination.endpoints),
    ]


def _commands_to_try(endpoints: "Endpoints") -> list[str]:
    address, call = local_address(endpoints.kafka), program()
    where = "" if address == _ADDRESS_DEFAULT else f" -b {address}"
    return [
        f"{call} topic create hello{where}",
        f"echo 'hello, world' | {call} produce hello{where}",
        f"{call} consume hello{where}",
    ]
