"""Options that many commands share, and the settings that follow from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.completing import setting_names
from dovetail.errors import InvalidInput, InvalidSetting
from dovetail.settings import Flag, parse_assignment, parse_duration_ms
from dovetail.settings.given import gather

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka
    from dovetail.kafka.client.brokers import Brokers
    from dovetail.settings import Settings

#: What the settings have where nothing is given; a test compares them.
BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
TIMEOUT_MS_DEFAULT = 10_000
_TIMEOUT_MS = range(100, 3_600_001)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file; default: dovetail.toml here."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.NAME=VALUE",
        help="Any setting; repeatable.",
        autocompletion=setting_names,
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        help="Address of the node; default: client.bootstrap, else kafka.host and kafka.port.",
    ),
]
TimeoutOption = Annotated[
    str | None,
    typer.Option("--timeout", metavar="DURATION", help="Time to wait for an answer, such as 5s."),
]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CompressionOption = Annotated[
    Compression, typer.Option("--compression", help="Compression of batches.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="One JSON object per line, for programs.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed without a terminal.")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C.")]
EtcdOption = Annotated[
    str | None,
    typer.Option("--etcd", metavar="HOST:PORT[,...]", help="Addresses of etcd's members."),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", "-d", metavar="URL", help="Database; default: outbox.database."),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Serve metrics on this port; 0: any free one."),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-host", metavar="HOST", help="Address for metrics; default: metrics.host."
    ),
]


@dataclass(frozen=True, slots=True)
class RootOptions:
    """What was given before the command: `dovetail --config FILE --set a.b=c COMMAND`."""

    config: Path | None = None
    assignments: tuple[str, ...] = ()


def root_options(ctx: typer.Context) -> RootOptions:
    """What was given before the command."""
    return ctx.obj if isinstance(ctx.obj, RootOptions) else RootOptions()


@dataclass(frozen=True, slots=True)
class Target:
    """The node that a client command speaks to."""

    bootstrap: str
    timeout_s: float
    #: TLS and login, as librdkafka wants them.
    security: Mapping[str, str] = field(default_factory=dict)

    def kafka(self) -> "Kafka":
        """A client for the functions of `admin`; nothing connects yet."""
        from dovetail.admin.kafka import Kafka
        from dovetail.cli.program import program

        return Kafka(
            self.bootstrap,
            timeout_s=self.timeout_s,
            client_id="dovetail-cli",
            security=self.security,
            advice=f"Is a node running? Start one with `{program()} up`, or name its address with "
            "--bootstrap.",
        )

    def brokers(self) -> "Brokers":
        """For the jobs of Spark. Raises `InvalidInput`."""
        from dovetail.kafka.client.brokers import Brokers

        return Brokers.at(self.bootstrap, self.security)


def settings_of(
    ctx: typer.Context,
    *,
    config: Path | None = None,
    assignments: Iterable[str] | None = None,
    flags: Iterable[Flag] = (),
) -> "Settings":
    """The settings in force for this command. Raises `InvalidSetting`."""
    # Here and not above: the sections cost a client more processor time than its own work.
    from dovetail.settings import load_settings

    root = root_options(ctx)
    given = [parse_assignment(text) for text in (*root.assignments, *(assignments or ()))]
    return load_settings(flags=[*flags, *given], config=config or root.config)


def target_of(ctx: typer.Context, bootstrap: str | None, timeout: str | None) -> Target:
    """The node to speak to. Raises `InvalidSetting`."""
    flags = flags_of(
        {
            "client.bootstrap": ("--bootstrap", bootstrap),
            "client.timeout_ms": ("--timeout", timeout),
        }
    )
    plain = _plain_target(root_options(ctx), flags)
    if plain is not None:
        return plain
    settings = settings_of(ctx, flags=flags)
    client = settings.client
    return Target(settings.bootstrap(), client.timeout_ms / 1000.0, client.kafka())


def _plain_target(root: RootOptions, flags: list[Flag]) -> Target | None:
    """The node where nothing is given but its address and the time limit; None otherwise.

    This is the usual case, and it needs no section of the settings, only their defaults.
    """
    given = gather(flags=[*flags, *map(parse_assignment, root.assignments)], config=root.config)
    bootstrap, timeout = given.pop("client.bootstrap", None), given.pop("client.timeout_ms", None)
    address = BOOTSTRAP_DEFAULT if bootstrap is None else bootstrap.value
    try:
        timeout_ms = TIMEOUT_MS_DEFAULT if timeout is None else parse_duration_ms(timeout.value)
    except InvalidSetting:
        return None
    if given or not isinstance(address, str) or not address or timeout_ms not in _TIMEOUT_MS:
        return None
    return Target(address, timeout_ms / 1000.0)


def metrics_flags(port: int | None, host: str | None) -> list[Flag]:
    """Settings that `--metrics-port` and `--metrics-host` stand for."""
    return flags_of(
        {
            "metrics.enabled": ("--metrics-port", None if port is None else True),
            "metrics.port": ("--metrics-port", port),
            "metrics.host": ("--metrics-host", host),
        }
    )


def flags_of(given: Mapping[str, tuple[str, object]]) -> list[Flag]:
    """Settings with the flag and the value of each; those without a value were not given."""
    return [Flag(name, value, flag) for name, (flag, value) in given.items() if value is not None]


def etcd_flags(etcd: str | None) -> list[Flag]:
    """Settings that `--etcd` stands for."""
    return flags_of(
        {
            "coordination.kind": ("--etcd", None if etcd is None else "etcd"),
            "coordination.endpoints": ("--etcd", etcd),
        }
    )


def named_values(option: str, texts: Iterable[str] | None) -> list[tuple[str, str]]:
    """What a repeatable option of the form `name=value` was given. Raises `InvalidInput`."""
    given = []
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(
                f"{option} {text!r} is not of the form name=value; write {option} name=value"
            )
        given.append((name, value))
    return given


def examples(*lines: str) -> str:
    """The end of a command's help: each line an example that can be copied."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in lines)])


def bytes_given(text: str, what: str) -> bytes:
    """An argument as the bytes that the shell handed over. Raises `InvalidInput`."""
    try:
        # Bytes that are not UTF-8 come as half characters of this kind.
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        from dovetail.foreign import encoded

        return encoded(text, what)
