"""`dovetail doctor`: all checks, one line each."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.cli.doctor.finding import Finding, failed, ok, skipped
from dovetail.cli.options import (
    BootstrapOption,
    ConfigOption,
    JsonOption,
    SetOption,
    TimeoutOption,
    examples,
    settings_of,
)
from dovetail.cli.outcome import ExitCode
from dovetail.cli.printable import printable
from dovetail.errors import DovetailError, InvalidSetting

if TYPE_CHECKING:
    from dovetail.settings import Flag, Settings

EPILOG = examples(
    "dovetail doctor",
    "dovetail doctor --bootstrap queue.example.org:9092",
    "dovetail doctor --config node.toml --json",
)

#: A service on this machine or in this network answers within milliseconds.
_ANSWER_S_MAX = 3.0

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def doctor(
    ctx: typer.Context,
    sample: Annotated[
        str,
        typer.Option("--sample", metavar="DURATION", help="How long to watch whether lag grows."),
    ] = "1s",
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    bootstrap: BootstrapOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this set-up, and say how to fix what is wrong.

    Looks at the installation, the settings, the data folder, the ports, the node and its cluster,
    and the services that the settings name. Changes nothing. Exit code 1 if a check failed;
    warnings do not count.
    """
    from dovetail.cli.progress import progress_bar
    from dovetail.settings import parse_duration_ms

    sample_s = parse_duration_ms(sample) / 1000
    findings = []
    with progress_bar(quiet=as_json) as bar:
        task = bar.add_task("looking", total=None)
        flags = _flags(bootstrap, timeout)
        settings, about = _settings(ctx, config_file, assignments, flags)
        findings.append(about)
        for finding in _all(settings, sample_s=sample_s):
            findings.append(finding)
            bar.update(task, description=f"looked at: {finding.check}")
    _print(findings, as_json=as_json)
    if any(finding.state == "failed" for finding in findings):
        raise typer.Exit(ExitCode.FAILED)


def _flags(bootstrap: str | None, timeout: str | None) -> "list[Flag]":
    from dovetail.settings import Flag

    given = {
        "client.bootstrap": ("--bootstrap", bootstrap),
        "client.timeout_ms": ("--timeout", timeout),
    }
    return [Flag(name, value, flag) for name, (flag, value) in given.items() if value is not None]


def _settings(
    ctx: typer.Context, config: ConfigOption, assignments: SetOption, flags: "list[Flag]"
) -> "tuple[Settings | None, Finding]":
    """The settings in force, or none, and what is to be said about them."""
    try:
        found = settings_of(ctx, config=config, assignments=assignments, flags=flags)
    except InvalidSetting as error:
        return None, judge_settings(str(error), given=0, files=())
    shown = [each for each in found.shown() if each.origin.place != "default"]
    files = sorted({each.origin.name for each in shown if each.origin.place == "file"})
    return found, judge_settings("", given=len(shown), files=tuple(files))


def judge_settings(error: str, *, given: int, files: tuple[str, ...]) -> Finding:
    """Whether the settings can be read; `given` of them are no defaults."""
    if error:
        return failed(
            "settings", error, fix="correct it; `dovetail config show` prints every setting"
        )
    source = f", from {', '.join(files)}" if files else ""
    return ok("settings", f"{given} differ from the defaults{source}" if given else "all defaults")


def _all(settings: "Settings | None", *, sample_s: float) -> Iterator[Finding]:
    from dovetail.cli.doctor import machine

    yield machine.judge_python(*machine.gather_python())
    needed = {} if settings is None else machine.extras_needed(settings)
    yield from machine.judge_packages(machine.gather_packages(), needed)
    yield machine.judge_spark(machine.gather_spark())
    if settings is None:
        yield skipped("node", "not looked at: the settings say where it is")
        return
    yield machine.judge_files(
        machine.gather_files(), connections_max=settings.kafka.connections_max
    )
    yield from _of_this_node(settings)
    yield from _of_services(settings)
    yield from _of_the_cluster(settings, sample_s=sample_s)


def _of_this_node(settings: "Settings") -> Iterator[Finding]:
    from dovetail.cli.doctor import folder

    yield from folder.judge_folder(
        folder.gather_folder(settings.node.data_dir),
        disk_free_bytes_min=settings.storage.disk_free_bytes_min,
        has_storage="storage" in settings.node.roles.split(","),
    )


def _of_services(settings: "Settings") -> Iterator[Finding]:
    from dovetail.cli.doctor import services

    if settings.coordination.kind == "etcd":
        from dovetail.coordination.etcd import EtcdSettings

        etcd = EtcdSettings.of(settings.coordination)
        yield services.judge_etcd(services.gather_etcd(etcd, limit_s=_limit_s(settings)))
    else:
        yield skipped("etcd", "one node alone needs none")
    stored = settings.timeline.enabled and settings.timeline.store == "postgres"
    yield services.judge_postgres(
        services.gather_postgres(settings.timeline.dsn, limit_s=_limit_s(settings))
        if stored
        else None
    )
    database = settings.outbox.database
    yield services.judge_outbox(
        services.gather_outbox(database) if database else None, idle_ms=settings.outbox.idle_ms
    )


def _of_the_cluster(settings: "Settings", *, sample_s: float) -> Iterator[Finding]:
    from dovetail.admin.node_http import NodeHttp
    from dovetail.cli.doctor import attention, cluster, listener
    from dovetail.cli.options import Target

    target = Target(
        settings.bootstrap(), settings.client.timeout_ms / 1000, settings.client.kafka()
    )
    client = target.kafka()
    node = listener.gather_node(client, named=bool(settings.client.bootstrap))
    answers = not (node.nobody or node.error)

    kafka, http = settings.kafka, settings.http
    yield listener.judge_access(listener.gather_access(settings))
    yield listener.judge_port(
        listener.gather_port("Kafka clients", "kafka", kafka.host, kafka.port), node_answers=answers
    )
    served = NodeHttp.beside(settings, named=bool(settings.client.bootstrap))
    health = cluster.HealthFact("not known: give http.host and http.port of a node of that cluster")
    if served is not None:
        health = cluster.gather_health(served, limit_s=_limit_s(settings))
        yield listener.judge_port(
            listener.gather_port("HTTP", "http", http.host, http.port),
            node_answers=health.answers,
        )
    yield from listener.judge_node(node)
    if not answers:
        return

    yield listener.judge_clock(
        listener.gather_clock(target), drift_ms_max=settings.timeline.drift_ms_max
    )
    yield _guarded(
        "partitions", lambda: cluster.judge_topics(cluster.gather_topics(client.metadata()))
    )

    spread = settings.coordination.kind == "etcd"
    yield cluster.judge_copies(
        cluster.gather_copies(settings) if spread else None,
        repair_after_ms=settings.storage.repair_after_ms,
    )
    yield from attention.judge_attention(
        attention.gather_attention(client, target, health.nodes, sample_s=sample_s)
    )


def _guarded(check: str, look: Callable[[], Finding]) -> Finding:
    """A node that stops answering half-way is a finding, not the end of the other checks."""
    try:
        return look()
    except DovetailError as error:
        text = str(error).partition("\n")[0]
        return failed(check, text, fix="read the log of the node; then run this again")


def _limit_s(settings: "Settings") -> float:
    """Time for one answer of a service; somebody waits, and there are many checks."""
    return min(_ANSWER_S_MAX, settings.client.timeout_ms / 1000)


def _print(findings: list[Finding], *, as_json: bool) -> None:
    from dataclasses import asdict

    from dovetail.cli.output import answers, note, plural, print_json

    count = {state: sum(one.state == state for one in findings) for state in _STYLES}
    if as_json:
        print_json({"checks": [asdict(finding) for finding in findings], "count": count})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", title="dovetail doctor", title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found", overflow="fold")
    for finding in findings:
        found = Text(printable(finding.text, keep="\n"))
        if finding.fix:
            found.append(f"\nfix: {finding.fix}", style="bold")
        table.add_row(Text(finding.check), Text(finding.state, style=_STYLES[finding.state]), found)
    console = answers()
    console.print(table)
    console.file.flush()
    warned = plural(count["warning"], "warning")
    note(
        f"{plural(len(findings), 'check')}: {count['ok']} ok, {warned}, {count['failed']} failed, "
        f"{count['skipped']} skipped"
    )
