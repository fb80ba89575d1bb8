"""Options that many commands share, and the settings that follow from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.cli.completing import setting_names

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka
    from dovetail.kafka.client.brokers import Brokers
    from dovetail.settings import Flag, Settings

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
CompressionOption = Annotated[Compression, typer.Option("--compression", help="Of the batches.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as JSON, for programs.")]
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
    flags: "Iterable[Flag]" = (),
) -> "Settings":
    """The settings in force for this command. Raises `InvalidSetting`."""
    from dovetail.settings import load_settings, parse_assignment

    root = ctx.obj if isinstance(ctx.obj, RootOptions) else RootOptions()
    given = [parse_assignment(text) for text in (*root.assignments, *(assignments or ()))]
    return load_settings(flags=[*flags, *given], config=config or root.config)


def target_of(ctx: typer.Context, bootstrap: str | None, timeout: str | None) -> Target:
    """The node to speak to. Raises `InvalidSetting`."""
    from dovetail.settings import Flag

    flags = []
    if bootstrap is not None:
        flags.append(Flag("client.bootstrap", bootstrap, "--bootstrap"))
    if timeout is not None:
        flags.append(Flag("client.timeout_ms", timeout, "--timeout"))
    settings = settings_of(ctx, flags=flags)
    client = settings.client
    return Target(settings.bootstrap(), client.timeout_ms / 1000.0, client.kafka())


def metrics_flags(port: int | None, host: str | None) -> "list[Flag]":
    """Settings that `--metrics-port` and `--metrics-host` stand for."""
    from dovetail.settings import Flag

    flags = []
    if port is not None:
        flags.append(Flag("metrics.enabled", True, "--metrics-port"))
        flags.append(Flag("metrics.port", port, "--metrics-port"))
    if host is not None:
        flags.append(Flag("metrics.host", host, "--metrics-host"))
    return flags


def examples(*lines: str) -> str:
    """The end of a command's help: each line an example that can be copied."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in lines)])
