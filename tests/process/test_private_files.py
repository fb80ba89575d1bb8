"""What lies in the data folder is for the node's own user alone."""

import stat

from tests.conftest import NodeFactory

import dovetail


def test_no_file_of_a_node_can_be_read_by_others(node_factory: NodeFactory) -> None:
    """F51: keys of logins, records and bodies are in files of mode 0600, in a folder of 0700."""
    node = node_factory()
    with dovetail.connect_blocking(node.bootstrap) as client:
        client.timeline("secrets").create()
        client.timeline("secrets").schedule(b"for one pair of eyes", delay="1h")

    kept = [path for path in node.data_dir.rglob("*") if path.is_file()]
    names = {path.name for path in kept}
    assert "coordination.sqlite" in names
    assert any(name.endswith(".segment") for name in names)
    assert any(path.parent.name == "timelines" for path in kept)
    assert stat.S_IMODE(node.data_dir.stat().st_mode) & 0o077 == 0
    holding = (".sqlite", ".segment", ".index", "-wal")
    open_to_others = [
        path.name
        for path in kept
        if path.name.endswith(holding) and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []
