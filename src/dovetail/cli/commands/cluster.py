"""`dovetail cluster`: a whole cluster on this machine, to work with and to see it survive (U2)."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.cli.completing import cluster_node_names
from dovetail.cli.local_cluster.folder import FOLDER_DEFAULT, ClusterFolder
from dovetail.cli.options import ConfigOption, JsonOption, RootOptions, SetOption, examples
from dovetail.cli.program import program
from dovetail.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from dovetail.cli.local_cluster.plan import Plan

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
    brokers: Annotated[int | None, typer.Option("--brokers", help="Default: 3.")] = None,
    storage: Annotated[
        int | None, typer.Option("--storage", help="Storage nodes; default: 3.")
    ] = None,
    etcd_members: Annotated[
        int | None, typer.Option("--etcd-members", help="Members of etcd; default: 3.")
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option("--etcd", metavar="HOST:PORT[,...]", help="An etcd that runs already."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65000,
            help="Of the first broker, the next ones follow; default: 9092 if free; 0: any free.",
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
            "--ack-quorum", min=1, help="Copies on disk before it is acknowledged; default: 2 of 3."
        ),
    ] = None,
    data_dir: FolderOption = FOLDER_DEFAULT,
    config_file: ConfigOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start etcd, storage nodes and brokers as background processes, and wait until they serve.

    What runs already is left alone, so this also brings back what was killed; more nodes than
    before are added. Data, numbers and ports stay as they were.
    """
    from dovetail.cli.local_cluster.plan import Wish
    from dovetail.cli.local_cluster.starting import start_cluster
    from dovetail.cli.output import note, notes

    root = ctx.obj if isinstance(ctx.obj, RootOptions) else RootOptions()
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
        assignments=(*root.assignments, *(assignments or ())),
    )
    folder = ClusterFolder(data_dir)
    with notes().status("starting"):
        plan = start_cluster(folder, wish, port=port, tell=note)
    if as_json:
        _print_started_json(folder, plan)
    else:
        _print_started(folder, plan)


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
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every second; Ctrl-C ends it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the processes, who holds a lease in etcd with which load, and who leads how much."""
    from dovetail.cli.cluster_view import Looker, rendered
    from dovetail.cli.cluster_view import as_json as view_as_json
    from dovetail.cli.output import answers, print_json

    looker = Looker(ClusterFolder(data_dir))
    if as_json and watch:
        raise InvalidInput("--watch is for people and --json for programs; give one of them")
    if as_json:
        print_json(view_as_json(looker.look()))
        return
    console = answers()
    if not watch:
        console.print(rendered(looker.look()))
        return
    from rich.live import Live

    with Live(rendered(looker.look()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(rendered(looker.look()), refresh=True)


@app.command("stop", epilog=examples("dovetail cluster stop", "dovetail cluster stop --timeout 5s"))
def stop(
    data_dir: FolderOption = FOLDER_DEFAULT,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="Then one that hangs is killed.")
    ] = "30s",
    as_json: JsonOption = False,
) -> None:
    """Stop all processes: brokers, then storage nodes, then etcd. The data stays."""
    from dovetail.cli.local_cluster import processes
    from dovetail.cli.output import note, print_json
    from dovetail.settings import parse_duration_ms

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
    if as_json:
        print_json({"folder": str(folder.path), "ended": ended})
    elif not found:
        note(f"nothing runs in {folder.path}")
    else:
        note(f"the data stays in {folder.path}; `{program()} cluster start{folder.hint()}` goes on")


@app.command(
    "kill", epilog=examples("dovetail cluster kill broker-1", "dovetail cluster kill storage-2")
)
def kill(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Kill processes with SIGKILL, as a crash would; `cluster start` brings them back."""
    from dovetail.cli.local_cluster import processes
    from dovetail.cli.output import note

    folder = ClusterFolder(data_dir)
    for name, process in _running(folder, names).items():
        processes.kill(name, process)
        note(f"{name} is dead; `{program()} cluster start{folder.hint()}` brings it back")


@app.command("pause", epilog=examples("dovetail cluster pause broker-1"))
def pause(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Pause processes with SIGSTOP: they stand still, and do not know it."""
    from dovetail.cli.local_cluster import processes
    from dovetail.cli.output import note

    folder = ClusterFolder(data_dir)
    for name, process in _running(folder, names).items():
        processes.pause(name, process)
        note(f"{name} stands still; `{program()} cluster resume {name}{folder.hint()}` wakes it")


@app.command("resume", epilog=examples("dovetail cluster resume broker-1"))
def resume(names: NamesArgument, data_dir: FolderOption = FOLDER_DEFAULT) -> None:
    """Wake paused processes with SIGCONT. A broker that lost its lease meanwhile may end itself."""
    from dovetail.cli.local_cluster import processes
    from dovetail.cli.output import note

    folder = ClusterFolder(data_dir)
    for name, process in _running(folder, names).items():
        processes.resume(name, process)
        note(f"{name} runs again")


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
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="From the end.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    data_dir: FolderOption = FOLDER_DEFAULT,
) -> None:
    """Print the end of what a process has said, dead or alive."""
    from dovetail.cli.local_cluster.processes import last_lines

    folder = ClusterFolder(data_dir)
    _check_names(folder.plan(), [name])
    path = folder.log(name)
    if not path.exists():
        raise NotFound(f"{name} has never been started, so there is no {path}")
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        for line in last_lines(folder, name, lines=lines) if lines else ():
            sys.stdout.write(f"{line}\n")
        while follow:
            sys.stdout.write(file.read())
            sys.stdout.flush()
            time.sleep(_FOLLOW_S)


def _found(folder: ClusterFolder) -> dict[str, Any]:
    """What runs in the folder. Raises `NotFound` if that is no cluster's."""
    from dovetail.cli.local_cluster import processes

    found = processes.find(folder)
    if not found:
        folder.plan()
    return found


def _running(folder: ClusterFolder, names: list[str]) -> dict[str, Any]:
    """The processes of these names. Raises `NotFound` unless all are of the plan and run."""
    from dovetail.cli.local_cluster import processes

    _check_names(folder.plan(), names)
    found = processes.find(folder)
    for name in names:
        if name not in found:
            raise NotFound(
                f"{name} does not run; `{program()} cluster start{folder.hint()}` brings it back"
            )
    return {name: found[name] for name in names}


def _check_names(plan: "Plan", names: list[str]) -> None:
    known = [process.name for process in plan.processes]
    for name in names:
        if name not in known:
            raise NotFound(f"there is no {name!r} in this cluster; it has {', '.join(known)}")


def _print_started_json(folder: ClusterFolder, plan: "Plan") -> None:
    from dovetail.cli.output import print_json

    print_json(
        {
            "folder": str(folder.path),
            "bootstrap": plan.bootstrap,
            "etcd": ",".join(plan.etcd_endpoints),
            "processes": {process.name: process.address for process in plan.processes},
        }
    )


def _print_started(folder: ClusterFolder, plan: "Plan") -> None:
    from rich.panel import Panel
    from rich.text import Text

    from dovetail.cli.output import answers

    call, first = f"{program()} cluster", plan.of_kind("broker")[0]
    safe = plan.write_quorum - plan.ack_quorum
    rows = [
        ("bootstrap servers", plan.bootstrap),
        ("etcd", ",".join(plan.etcd_endpoints)),
        ("health, metrics", f"http://127.0.0.1:{first.side_port} ({first.name})"),
        ("data and logs", str(folder.path)),
        (
            "every record is",
            f"synced on {plan.ack_quorum} of {plan.write_quorum} storage nodes before it is "
            f"acknowledged; {safe} can be away",
        ),
    ]
    text = Text()
    for name, value in rows:
        text.append(f"{name:<19}", style="dim").append(f"{value}\n")
    text.append("\nTry it:\n", style="dim")
    for command in (
        f"export DOVETAIL_CLIENT_BOOTSTRAP={plan.bootstrap}",
        f"{program()} topic create hello --partitions 6",
        f"{program()} bench",
        f"{call} kill {first.name}{folder.hint()}",
        f"{call} status{folder.hint()}",
        f"{call} start{folder.hint()}",
    ):
        text.append(f"  {command}\n", style="bold")
    text.append(f"\n{call} stop{folder.hint()} ends it; the data stays.", style="dim")
    answers().print(Panel(text, title="The cluster is ready", title_align="left", expand=False))
