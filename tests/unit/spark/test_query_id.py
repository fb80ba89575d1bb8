"""The id of a query in its checkpoint."""

import json
import threading
from pathlib import Path

from dovetail.spark.query_id import claim_query_id, local_folder


def test_masters_that_start_at_once_get_one_query_id(tmp_path: Path) -> None:
    """T2, T5: the first one makes it; it stays, and nothing else is left behind."""
    gate = threading.Barrier(4)
    found: list[str] = []

    def start(folder: Path) -> None:
        gate.wait()
        claim_query_id(f"file://{folder}")
        found.append((folder / "metadata").read_text())

    for round_ in range(20):
        folder = tmp_path / str(round_)
        threads = [threading.Thread(target=start, args=(folder,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [text] = set(found)
        assert len(json.loads(text)["id"]) == 36
        claim_query_id(str(folder))
        assert [path.name for path in folder.iterdir()] == ["metadata"]
        assert (folder / "metadata").read_text() == text
        found.clear()


def test_only_what_is_on_this_machine_is_touched() -> None:
    """T2: elsewhere the file system decides."""
    assert local_folder("hdfs://name/shop") is None
    assert local_folder("s3a://bucket/shop") is None
    assert local_folder("file://host/shop") is None
    assert local_folder("file:/shop") == Path("/shop")
    assert local_folder("/var/lib/shop") == Path("/var/lib/shop")
    claim_query_id("hdfs://name/shop")
