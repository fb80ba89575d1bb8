"""A front end at its ends: in a fork, without a node, and with odd times."""

import math
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningNode
from tests.etcd_server import free_ports
from tests.process.teams.attempts import read

from dovetail.errors import InvalidInput, Unavailable
from dovetail.teams import FrontEnd, Pipeline, Team, cancel, create_topics

DEADLINE_S = 60.0


def same(job: Any) -> Any:
    return job


def prepared() -> Pipeline:
    return Pipeline(f"f{uuid.uuid4().hex[:8]}", Team("a", same))


def test_a_front_end_works_in_a_forked_process(node: RunningNode, tmp_path: Path) -> None:
    """T4, R5: as of a server that loads the application and then forks. Nothing was stored there,
    and every call waited for two minutes."""
    pipeline = prepared()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap, timeout_s=DEADLINE_S) as front:
        front.submit(1, "parent")
        pid = os.fork()
        if not pid:
            code = 1
            try:
                front.submit(2, "child")
                front.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        front.submit(3, "parent again")
    keys = {key for key, *_ in read(node, pipeline.topics().input)}
    assert keys == {b"parent", b"child", b"parent again"}


def test_asking_ends_in_time_without_a_node() -> None:
    """T4: `timeout_s` was for the result alone; before it came a minute for the brokers."""
    away = f"127.0.0.1:{free_ports(1)[0]}"
    with (
        FrontEnd(prepared(), away, timeout_s=DEADLINE_S) as front,
        pytest.raises(Unavailable, match="gave up after 1 s"),
    ):
        front.ask(1, timeout_s=0.5)


@pytest.mark.parametrize("odd", [0, -1, math.nan, math.inf, 1e12, "3", None, True])
def test_an_odd_time_is_refused(odd: Any) -> None:
    """R6: as `InvalidInput`, and not as what librdkafka says of a number it has made of it."""
    with pytest.raises(InvalidInput, match="timeout_s"):
        FrontEnd(prepared(), "127.0.0.1:1", timeout_s=odd)
    with pytest.raises(InvalidInput, match="timeout_s"):
        cancel("p", "job", "127.0.0.1:1", timeout_s=odd)


@pytest.mark.parametrize("odd", [None, b"x", 5])
def test_a_reason_is_text(odd: Any) -> None:
    """R6: refused where it is given."""
    with pytest.raises(InvalidInput, match="is not text"):
        cancel("p", "job", "127.0.0.1:1", reason=odd)
