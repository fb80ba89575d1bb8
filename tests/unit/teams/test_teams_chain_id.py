"""The chain of a team in its checkpoint: the first master creates it, all others use it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dovetail.teams.chains.chain_id import (
    claim_chain,
    copy_of,
    keep_copy,
    local_folder,
    producer_of,
)


def test_masters_that_start_at_once_share_one_chain(tmp_path: Path) -> None:
    """T2: whoever is first decides the id and the number of results partitions."""
    for round_ in range(20):
        where = f"file://{tmp_path}/{round_}/team"
        with ThreadPoolExecutor(8) as masters:
            found = set(masters.map(lambda n, at=where: claim_chain(None, at, results=n), range(8)))
        assert len(found) == 1
        assert claim_chain(None, where, results=99) in found
        assert [path.name for path in (tmp_path / str(round_) / "team").iterdir()] == ["chain.json"]


def test_a_snapshot_of_a_partition_is_kept(tmp_path: Path) -> None:
    """T5: positions that are lost later are then found there, and not taken for a beginning."""
    where = str(tmp_path / "team")
    claim_chain(None, where, results=2)
    assert copy_of(None, where, 1) is None
    for position in (3, 7):
        stored = {("in", 1): (position, "term=2"), ("out", 0): (9, "n=4 for=3 begin=0 at=5")}
        keep_copy(None, where, 1, stored)
        assert copy_of(None, where, 1) == stored
    assert copy_of(None, where, 0) is None
    for garbage in (b"", b"[[1]]", b"{}7", b"\xff"):
        (tmp_path / "team" / "begun-0").write_bytes(garbage)
        assert copy_of(None, where, 0) == {}, "it has begun, and nobody knows where"


def test_partitions_and_teams_have_producers_of_their_own() -> None:
    """T5: far from those that brokers hand out, and within 63 bits."""
    made = {producer_of(chain, number) for chain in "abc" for number in range(100)}
    assert len(made) == 300
    assert min(made) >= 1 << 62
    assert max(made) < 1 << 63


def test_what_is_on_this_machine() -> None:
    """T2: a hard link decides there; other file systems refuse to rename onto a file."""
    assert local_folder("hdfs://name/shop") is None
    assert local_folder("s3a://bucket/shop") is None
    assert local_folder("file://host/shop") is None
    assert local_folder("file:/shop") == Path("/shop")
    assert local_folder("/var/lib/shop") == Path("/var/lib/shop")
