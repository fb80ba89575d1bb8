"""`dovetail up`: a whole node in this process."""

import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dovetail.addresses import Address, parse_address
from dovetail.background import start_thread
from dovetail.cli.brokers import BROKERS_MAX, Broker, BrokerProcesses, check, storage_settings
from dovetail.cli.options import (
    BOOTSTRAP_DEFAULT,
    ConfigOption,
    SetOption,
    examples,
    flags_of,
    root_options,
    settings_of,
)
from dovetail.cli.output import print_json_line, print_panel
from dovetail.cli.program import program
from dovetail.cli.starting import error_of_address, prepare_folder
from dovetail.console import http_of
from dovetail.errors import Unavailable
from dovetail.logging import configure_logging
from dovetail.node import Endpoints, Node, serve
from dovetail.settings import Flag, Settings

EPILOG = examples(
    "dovetail up",
    "dovetail up --data-dir /var/lib/dovetail --port 9192",
    "dovetail up --host 0.0.0.0 --advertised-host queue.example.org",
    "dovetail up --brokers 4",
    "dovetail up --set log.retention_ms=2d --set storage.durability=os",
)

#: A client on this machine reaches a node that listens everywhere here.
_LOCAL_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}

#: Time to find the advertised host; the node is ready and nobody should wait for a slow resolver.
_RESOLVE_S_MAX = 1.0


DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Folder for everything the node stores."),
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
    typer.Option("--advertised-host", metavar="HOST", help="Host that clients connect to."),
]
AdvertisedPortOption = Annotated[
    int | None,
    typer.Option("--advertised-port", metavar="PORT", help="Port that clients connect to."),
]
HttpPortOption = Annotated[
    int | None,
    typer.Option("--http-port", metavar="PORT", help="Port for HTTP; 0 takes any free one."),
]
NoHttpOption = Annotated[
    bool, typer.Option("--no-http", help="Do not serve health and metrics over HTTP.")
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
    brokers: Annotated[
        int | None,
        typer.Option(
            "--brokers",
            min=1,
            max=BROKERS_MAX,
            help="Use several cores: so many broker processes beside one that has the disk. They "
            "listen on --port and the ports behind it.",
        ),
    ] = None,
) -> None:
    """Run a single node that needs no other service. Ctrl-C stops it.

    Everything acknowledged is on disk in the data folder, and survives a restart.
    """
    flags = listener_flags(
        data_dir=data_dir,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        http_port=http_port,
        no_http=no_http,
    )
    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    if brokers is None:
        run_node(settings, as_json=as_json)
    root = root_options(ctx)
    check(settings, brokers)
    beside = BrokerProcesses(
        settings,
        brokers,
        config=config_file or root.config,
        assignments=[*root.assignments, *(assignments or ())],
    )
    run_node(storage_settings(settings, brokers), as_json=as_json, beside=beside)


def listener_flags(
    *,
    data_dir: Path | None,
    host: str | None,
    port: int | None,
    advertised_host: str | None,
    advertised_port: int | None,
    http_port: int | None,
    no_http: bool,
) -> list[Flag]:
    """The settings behind the flags that `up` and `node` share."""
    return flags_of(
        {
            "node.data_dir": ("--data-dir", data_dir),
            "kafka.host": ("--host", host),
            "kafka.port": ("--port", port),
            "kafka.advertised_host": ("--advertised-host", advertised_host),
            "kafka.advertised_port": ("--advertised-port", advertised_port),
            "http.port": ("--http-port", http_port),
            "http.enabled": ("--no-http", False if no_http else None),
        }
    )


def run_node(
    settings: Settings, *, as_json: bool, beside: BrokerProcesses | None = None
) -> NoReturn:
    """Runs a node in this process until a signal stops it, then exits with its code."""
    configure_logging(format=settings.logging.format, level=settings.logging.level)
    prepare_folder(settings.node.data_dir)

    def on_ready(endpoints: Endpoints) -> None:
        if as_json:
            _print_line(settings, endpoints, beside)
        elif beside is not None:
            _print_brokers(settings, endpoints, beside.brokers)
        else:
            _print_panel(settings, endpoints)

    try:
        run = None if beside is None else beside.run
        code = serve(settings, on_ready, http=_http_with_flags, beside=run)
    except OSError as error:
        explained = error_of_address(error, settings)
        if explained is None:
            raise
        raise explained from error
    raise typer.Exit(code)


@asynccontextmanager
async def _http_with_flags(node: Node, settings: Settings) -> AsyncIterator[str]:
    """Serves HTTP; the error for an address in use names the flags of `up`."""
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(http_of(node, settings))
        except Unavailable as error:
            raise Unavailable(
                f"{error}.\nOn the command line: --http-port, 0 for any free one, or --no-http."
            ) from error
        yield url


def _advertised(settings: Settings, endpoints: Endpoints) -> Address:
    port_bound = parse_address(endpoints.kafka).port
    return Address(*settings.kafka.advertised(port_bound=port_bound))


def local_address(kafka: str) -> str:
    """Where a client on this machine finds the node that listens on `kafka`."""
    host, port = parse_address(kafka)
    return str(Address(_LOCAL_BY_WILDCARD.get(host, host), port))


def resolves(host: str) -> bool:
    """Whether this machine finds an address for the host, soon enough."""
    found = threading.Event()

    def look() -> None:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            return
        found.set()

    start_thread(look, name="cli/resolve-host")
    return found.wait(_RESOLVE_S_MAX)


def _print_line(settings: Settings, endpoints: Endpoints, beside: BrokerProcesses | None) -> None:
    if beside is not None:
        print_json_line(
            {
                "kafka": ",".join(one.kafka for one in beside.brokers),
                "brokers": [
                    {"number": one.number, "kafka": one.kafka, "http": one.http}
                    for one in beside.brokers
                ],
                "http": endpoints.http,
                "data_dir": str(endpoints.data_dir.resolve()),
            }
        )
        return
    print_json_line(
        {
            "kafka": endpoints.kafka,
            "advertised": str(_advertised(settings, endpoints)),
            "http": endpoints.http,
            "data_dir": str(endpoints.data_dir.resolve()),
        }
    )


def _print_panel(settings: Settings, endpoints: Endpoints) -> None:
    advertised = _advertised(settings, endpoints)
    hint = "(change it with --advertised-host)"
    if not resolves(advertised.host):
        hint = "which this machine cannot resolve: give --advertised-host"
    rows = [
        *_place_in_cluster(settings),
        ("Kafka clients", endpoints.kafka),
        ("advertised as", f"{advertised}  {hint}"),
        ("health, metrics", endpoints.http or "off"),
        ("data folder", str(endpoints.data_dir.resolve())),
        ("every write is", _durability(settings)),
    ]
    commands = (
        _commands_to_try(endpoints.kafka) if "broker" in settings.node.roles.split(",") else []
    )
    print_panel(
        "Dovetail is ready",
        rows,
        heading="Try it in another terminal:",
        commands=commands,
        ending="Ctrl-C stops the node; the data stays.",
    )


def _print_brokers(settings: Settings, endpoints: Endpoints, brokers: Sequence[Broker]) -> None:
    clients = ",".join(one.kafka for one in brokers)
    rows = [
        ("Kafka clients", clients),
        ("console", ", ".join(one.http for one in brokers if one.http is not None) or "off"),
        ("health of all", endpoints.http or "off"),
        ("data folder", str(endpoints.data_dir.resolve())),
        ("every write is", _durability(settings)),
    ]
    print_panel(
        f"Dovetail is ready: {len(brokers)} brokers over one disk",
        rows,
        heading="Try it in another terminal:",
        commands=_commands_to_try(brokers[0].kafka),
        ending="Ctrl-C stops all of it; the data stays.",
    )


def _durability(settings: Settings) -> str:
    if settings.storage.durability == "os":
        return 'left to the kernel: a power cut can lose records (durability = "os")'
    return "synced to disk before it is acknowledged"


def _place_in_cluster(settings: Settings) -> list[tuple[str, str]]:
    if settings.coordination.kind == "embedded":
        return []
    node = settings.node
    return [
        ("node", f"{node.name}, number {node.node_id}: {node.roles}"),
        ("etcd", settings.coordination.endpoints),
    ]


def _commands_to_try(kafka: str) -> list[str]:
    address, call = local_address(kafka), program()
    where = "" if address == BOOTSTRAP_DEFAULT else f" -b {address}"
    return [
        f"{call} topic create hello{where}",
        f"echo 'hello, world' | {call} produce hello{where}",
        f"{call} consume hello{where}",
    ]
