"""`dovetail node`: a node of a cluster in this process; what `up` is for one alone."""

from typing import Annotated

import typer

from dovetail.background import start_thread
from dovetail.cli.brokers import end_with_input
from dovetail.cli.commands.up import (
    AdvertisedHostOption,
    AdvertisedPortOption,
    DataDirOption,
    HostOption,
    HttpPortOption,
    NoHttpOption,
    PortOption,
    ReadyJsonOption,
    listener_flags,
    run_node,
)
from dovetail.cli.options import (
    ConfigOption,
    EtcdOption,
    SetOption,
    etcd_flags,
    examples,
    flags_of,
    settings_of,
)
from dovetail.cli.program import program
from dovetail.errors import InvalidSetting
from dovetail.settings import Flag, Settings

EPILOG = examples(
    "dovetail node --roles storage --node-id 1 --etcd 10.0.0.1:2379 --host 10.0.0.11",
    "dovetail node --roles overseer,broker --node-id 101 --etcd 10.0.0.1:2379 --host 10.0.0.21 "
    "--set log.ensemble=3 --set log.write_quorum=3 --set log.ack_quorum=2",
    "dovetail node --roles overseer,broker,storage --node-id 7 --config node.toml",
    "dovetail cluster start   # a whole cluster on this machine",
)


def node(
    ctx: typer.Context,
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles",
            metavar="ROLE[,ROLE...]",
            help="What this node does: broker (serves clients), storage (keeps ledgers), overseer "
            "(answers questions about the cluster).",
        ),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option(
            "--node-id", min=1, help="Number of this node, unique in the cluster; it never changes."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Name of this node; default: dovetail-NUMBER."),
    ] = None,
    etcd: EtcdOption = None,
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
    until_input_ends: Annotated[bool, typer.Option("--until-input-ends", hidden=True)] = False,
) -> None:
    """Run one node of a cluster; the nodes find each other through etcd. Ctrl-C stops it.

    Nodes connect to each other at their advertised addresses, as clients do. Choose one that the
    other nodes can reach: --host with an address of this machine, or --advertised-host.
    """
    flags = flags_of(
        {
            "node.roles": ("--roles", roles),
            "node.node_id": ("--node-id", node_id),
            "node.name": ("--name", name),
        }
    )
    flags += etcd_flags(etcd)
    flags += listener_flags(
        data_dir=data_dir,
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        http_port=http_port,
        no_http=no_http,
    )

    settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    _check_is_member(settings)
    if settings.origin("node.name").place == "default":
        flags.append(Flag("node.name", f"dovetail-{settings.node.node_id}", "--node-id"))
        settings = settings_of(ctx, config=config_file, assignments=assignments, flags=flags)
    if until_input_ends:
        start_thread(end_with_input, name="cli/input")
    run_node(settings, as_json=as_json)


def _check_is_member(settings: Settings) -> None:
    if settings.coordination.alone:
        raise InvalidSetting(
            "a node of a cluster finds the others through etcd; give its address with --etcd "
            f"host:port (coordination.kind and .endpoints). To run a single node: {program()} up"
        )
    if settings.origin("node.node_id").place == "default":
        raise InvalidSetting(
            "every node of a cluster has its own number and keeps it; give it with --node-id "
            "(node.node_id)"
        )
