"""The section `node`: the node's number, name and folder."""

from pathlib import Path

from dovetail.settings.kinds import Section, setting


class NodeSettings(Section):
    """Who this node is, and where its files are."""

    # The name appears in keys of the coordination store and in file names: hence no separators.
    name: str = setting(
        "dovetail-1",
        "Name of this node; unique in the cluster.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    )
    # Kafka's node ids are 32-bit and not negative; 0 is left to mean "none" in our own protocols.
    node_id: int = setting(
        1, "Number of this node in the Kafka protocol; unique in the cluster.", ge=1, le=2**31 - 1
    )
    data_dir: Path = setting(Path("dovetail-data"), "Folder in which this node stores everything.")
    roles: str = setting(
        "overseer,broker,storage",
        "What this node does: broker (serves clients), storage (keeps ledgers), overseer "
        "(answers questions about the cluster).",
        pattern=r"^(overseer|broker|storage)(,(overseer|broker|storage))*$",
    )
    rack: str = setting(
        "",
        "Rack or zone of this node, if there are several: the copies of a ledger are spread over "
        "racks, and clients see the racks of brokers.",
        pattern=r"^[A-Za-z0-9._:/-]{0,255}$",
    )
