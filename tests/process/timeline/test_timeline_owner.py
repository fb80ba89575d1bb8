"""Whose schema it is: a node that was built anew on the database of a lost one."""

import re
import subprocess
import sys

import pytest
from tests import warm_python
from tests.conftest import NodeFactory, RunningNode
from tests.database_servers import PostgresServer

import dovetail


def adopt(dsn: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dovetail", "timeline", "adopt", *words]
    return warm_python.run(
        [*command, "--set", f"timeline.dsn={dsn}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


async def test_a_rebuilt_node_is_refused_until_it_adopts(
    node_factory: NodeFactory, postgres_server: PostgresServer
) -> None:
    """F5: it does not start, and says which command gives it the timelines; after that it has them
    with their settings and messages, and the lost one, should it come back, is refused."""
    dsn = postgres_server.create_database().dsn
    settings = {"timeline_store": "postgres", "timeline_dsn": dsn}
    lost = node_factory(**settings)
    async with dovetail.connect(lost.bootstrap) as d:
        await d.timeline("work").create(dovetail.timeline.TimelineConfig(attempts_max=7))
        await d.timeline("work").schedule(b"kept", delay="1h", key="k")
    lost.stop()

    rebuilt = RunningNode(lost.data_dir.parent / "rebuilt", settings)
    with pytest.raises(AssertionError, match="did not start"):
        rebuilt.start()
    log = rebuilt.log()
    assert "holds the timelines of another cluster" in log
    assert dsn not in log
    found = re.search(r"dovetail timeline adopt (\w+) (\w+)", log)
    assert found is not None

    wrong = adopt(dsn, "nobody", found[2], "--yes")
    assert wrong.returncode == 3
    assert f"belongs to cluster {found[1]}" in wrong.stderr
    assert adopt(dsn, found[1], found[2]).returncode == 2, "there is no terminal to ask on"
    done = adopt(dsn, found[1], found[2], "--yes")
    assert done.returncode == 0, done.stderr

    try:
        rebuilt.start()
        async with dovetail.connect(rebuilt.bootstrap) as d:
            assert (await d.timeline("work").describe()).config.attempts_max == 7
            shown = await d.timeline("work").look_up_key("k")
            assert shown is not None
            assert shown.body == b"kept"
            await d.timeline("more").create()
            assert (await d.timeline("more").describe()).counts.waiting == 0
        with pytest.raises(AssertionError, match="did not start"):
            lost.start()
        assert "holds the timelines of another cluster" in lost.log()
    finally:
        rebuilt.kill()
