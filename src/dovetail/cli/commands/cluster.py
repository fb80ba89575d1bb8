"""`dovetail cluster`: a whole cluster on this machine, to work with and to break (U2)."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from dovetail.cli.completing import cluster_node_names
from dovetail.cli.local_cluster import processes
from dovetail.cli.local_cluster.folder import FOLDER_DEFAULT, ClusterFolder
from dovetail.cli.local_cluster.plan import Plan, Wish
from dovetail.cli.local_cluster.starting import start_cluster
from dovetail.cli.local_cluster.view import Looker, as_document, rendered
from dovetail.cli.options import (
    ConfigOption,
    JsonOption,
    SetOption,
    WatchOption,
    examples,
    root_options,
)
from dovetail.cli.output import answers, note, notes, print_done, print_json, print_panel
from dovetail.cli.program import program
from dovetail.errors import InvalidInput, NotFound
from dovetail.settings import parse_duration_ms

app = typer.Typer(
    no_args_is_help=True,
    epilog=examples("dovetail cluster start", "dovetail cluster status --watch"),
)

FolderOption = Annotated[
    Path,
    typer.Option(
        "--data-dir", metavar="FOLDER", help="Folder of the cluster: its plan, data and logs."
    ),
]
NamesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="NODE...",
        help="Names, such as broker-1, storage-2 or etcd-1.",
        autocompletion=cluster_node_names,
    ),
]

#: Time between two looks of `status --watch`.
_WATCH_S = 1.0

#: Time between two looks at a log that is followed.
_FOLLOW_S = 0.2


@app.command(
    "start",
    epilog=examples(
        "dovetail cluster start",
        "dovetail cluster start --brokers 1 --storage 1 --etcd-members 1",
        "dovetail cluster start --storage 5 --write-quorum 3 --ack-quorum 2",
        "dovetail cluster start --etcd 10.0.0.1:2379 --set log.retention_ms=2d",
    ),
)
def start(
    ctx: typer.Context,
    brokers: Annotated[int | None, typer.Option("--brokers", help="Brokers; default: 3.")] = None,
    storage: Annotated[
        int | None, typer.Option("--storage", help="Storage nodes; default: 3.")
    ] = None,
    etcd_members: Annotated[
        int | None, typer.Option("--etcd-members", help="Members of etcd; default: 3.")
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(
            "--etcd", metavar="HOST:PORT[,...]", help="A running etcd; default: start one."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65000,
            help="Port of the first broker, others follow; default: 9092 if free; 0: any free.",
        ),
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option("--ensemble", min=1, help="Storage nodes of one ledger.")
    ] = None,
    write_quorum: Annotated[
        int | None, typer.Option("--write-quorum", min=1, help="Copies of a record; default: 3.")
    ] = None,
    ack_quorum: Annotated[
        int | None,
        typer.Option(
            "--ack-quorum",
            min=1,
            help="Copies on disk before a record is acknowledged; default: 2 of 3.",
        ),
    ] = None,
    timelines_store: Annotated[
        str | None,
        typer.Option(
            "--timelines-store",
            metavar="URL",
            help="A running PostgreSQL for timelines; default: start one.",
        ),
    ] = None,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", help="Encrypt: certificates for a new cluster are made in its folder."
        ),
    ] = False,
    data_dir: FolderOption = FOLDER_DEFAULT,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start etcd, PostgreSQL, storage nodes and brokers in the background; wait until they serve.

    Processes that run are left alone, so this also restarts those that were killed. A larger number
    of nodes adds nodes. Data, node numbers and ports stay the same.
    """
    root = root_options(ctx)
    config = config_file or root.config
    wish = Wish(
        brokers=brokers,
        storage=storage,
        etcd_members=etcd_members,
        etcd=tuple(etcd.split(",")) if etcd else (),
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        config=None if config is None else str(config.absolute()),
        assignments=(*root.assignments, *(assignments or ()), *_store(timelines_store)),
        tls=tls,
    )
    folder = ClusterFolder(data_dir)
    with notes().status("starting"):
        plan = start_cluster(folder, wish, port=port, on_step=note)
    if as_json:
        _print_started_json(folder, plan)
    else:
        _print_started(folder, plan)


def _store(url: str | None) -> tuple[str, ...]:
    """The settings that a database for timelines means. Raises `InvalidInput`."""
    if url is None:
        return ()
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidInput(
            f"--timelines-store {url}: give the address of a PostgreSQL, such as "
            "postgresql://user@host:5432/database"
        )
    return "timeline.store=postgres", f"timeline.dsn={url}"


@app.command(
    "status",
    epilog=examples(
        "dovetail cluster status",
        "dovetail cluster status --watch",
        "dovetail cluster status --json",
    ),
)
def status(
    data_dir: FolderOption = FOLDER_DEFAULT,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the processes, which nodes hold a lease in etcd, their load, and who leads what."""
    looker = Looker(ClusterFolder(data_dir))
    if as_json and watch:
        raise InvalidInput("--watch is for people and --json for programs; give one of them")
    if as_json:
        print_json(as_document(looker.look()))
        return
    console = answers()
    if not watch:
        console.print(rendered(looker.look()))
        return
    with Live(rendered(looker.look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(rendered(looker.look()), refresh=True)


@app.command("stop", epilog=examples("dovetail cluster stop", "dovetail cluster stop --timeout 5s"))
def stop(
    data_dir: FolderOption = FOLDER_DEFAULT,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="DURATION", help="Slower processes are killed."),
    ] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Stop all processes: brokers, storage nodes, PostgreSQL, then etcd. The data stays."""
    patience_s = parse_duration_ms(timeout) / 1000
    folder = ClusterFolder(data_dir)
    found = _found(folder)
    ended: dict[str, str] = {}

    def on_stopped(name: str, killed: bool) -> None:
        ended[name] = "killed" if killed else "stopped"
        if not as_json:
            note(f"{name:<12} {'did not stop in time and was killed' if killed else 'stopped'}")

    if found:
        with folder.locked():
            processes.stop(found, patience_s=patience_s, on_stopped=on_stopped)
    text = f"nothing runs in {folder.path}"
    if found:
        text = (
            f"the data stays in {folder.path}; `{program()} cluster start{folder.hint()}` starts "
            "the cluster again"
        )
    print_done(as_json, {"folder": str(folder.path), "ended": ended}, text)


@app.command(
    "kill", epilog=examples("dovetail cluster kill broker-1", "dovetail cluster kill storage-2")
)
def kill(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Kill processes with SIGKILL, like a crash; `cluster start` restarts them."""
    _signal(data_dir, names, processes.kill, "{name} is dead; `{cluster} start{hint}` restarts it")


@app.command("pause", epilog=examples("dovetail cluster pause broker-1"))
def pause(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Pause processes with SIGSTOP; they do not notice that they were stopped."""
    advice = "`{cluster} resume {name}{hint}` resumes it"
    _signal(data_dir, names, processes.pause, "{name} is paused; " + advice)


@app.command("resume", epilog=examples("dovetail cluster resume broker-1"))
def resume(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Wake paused processes with SIGCONT. A broker whose lease has expired may exit."""
    _signal(data_dir, names, processes.resume, "{name} runs again")


@app.command(
    "logs",
    epilog=examples("dovetail cluster logs broker-1", "dovetail cluster logs etcd-1 --follow"),
)
def logs(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NODE", help="Name, such as broker-1.", autocompletion=cluster_node_names
        ),
    ],
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    data_dir: FolderOption = FOLDER_DEFAULT,
) -> None:
    """Print the end of a process's log; the process may be dead."""
    folder = ClusterFolder(data_dir)
    _check_names(folder.plan(), [name])
    path = folder.log(name)
    if not path.exists():
        raise NotFound(f"{name} has never been started, so there is no {path}")
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        for line in processes.last_lines(folder, name, lines=lines) if lines else ():
            sys.stdout.write(f"{line}\n")
        while follow:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            time.sleep(_FOLLOW_S)


def _signal(
    data_dir: Path, names: list[str], action: Callable[[str, Any], None], report: str
) -> None:
    """Does it to each process, and says what is so now. Raises `NotFound`, `Refused`."""
    folder = ClusterFolder(data_dir)
    for name, process in _running(folder, names).items():
        action(name, process)
        note(report.format(name=name, cluster=f"{program()} cluster", hint=folder.hint()))


def _found(folder: ClusterFolder) -> dict[str, Any]:
    """What runs in the folder. Raises `NotFound` if there is no cluster."""
    found = processes.find(folder)
    if not found:
        folder.plan()
    return found


def _running(folder: ClusterFolder, names: list[str]) -> dict[str, Any]:
    """The processes of these names. Raises `NotFound` unless all are of the plan and run."""

    _check_names(folder.plan(), names)
    found = processes.find(folder)
    for name in names:
        if name not in found:
            raise NotFound(
                f"{name} does not run; `{program()} cluster start{folder.hint()}` restarts it"
            )
    return {name: found[name] for name in names}


def _check_names(plan: Plan, names: list[str]) -> None:
    known = [process.name for process in plan.processes]
    for name in names:
        if name not in known:
            raise NotFound(f"there is no {name!r} in this cluster; it has {', '.join(known)}")


def _print_started_json(folder: ClusterFolder, plan: Plan) -> None:

    print_json(
        {
            "folder": str(folder.path),
            "bootstrap": plan.bootstrap,
            "etcd": ",".join(plan.etcd_endpoints),
            "tls_ca": str(folder.certificates / "ca.pem") if plan.tls else None,
            "processes": {process.name: process.address for process in plan.processes},
        }
    )


def _trust(folder: ClusterFolder) -> str:
    """What a shell is told, so that clients encrypt."""
    ca = (folder.certificates / "ca.pem").absolute()
    return f"export DOVETAIL_CLIENT_TLS=true DOVETAIL_CLIENT_TLS_CA={shlex.quote(str(ca))}"


def _print_started(folder: ClusterFolder, plan: Plan) -> None:

    call, first, hint = f"{program()} cluster", plan.of_kind("broker")[0], folder.hint()
    spare = plan.write_quorum - plan.ack_quorum
    rows = [
        ("bootstrap servers", plan.bootstrap),
        ("etcd", ",".join(plan.etcd_endpoints)),
        ("health, metrics", f"http://127.0.0.1:{first.side_port} ({first.name})"),
        ("data and logs", str(folder.path)),
        *(("timelines", f"in PostgreSQL at {one.address}") for one in plan.of_kind("postgres")),
        (
            "every record is",
            f"synced on {plan.ack_quorum} of {plan.write_quorum} storage nodes before it is "
            f"acknowledged; {spare} may be down",
        ),
    ]

    print_panel(
        "The cluster is ready",
        rows,
        heading="Try it:",
        commands=[
            f"export DOVETAIL_CLIENT_BOOTSTRAP={plan.bootstrap}",
            *([_trust(folder)] if plan.tls else []),
            f"{program()} topic create hello --partitions 6",
            f"{program()} bench",
            f"{call} kill {first.name}{hint}",
            f"{call} status{hint}",
            f"{call} start{hint}",
        ],
        ending=f"{call} stop{hint} ends it; the data stays.",
    )
