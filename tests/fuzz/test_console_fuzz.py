"""The HTTP API under requests that its own document describes, and such that it does not.

Schemathesis makes requests from the OpenAPI document, fitting and not, against a real node.
Every answer must be one that the document names, in its shape; none may be a defect; the node must
serve afterwards. `FUZZ_CASES` sets the number of requests, divided over the operations.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.conftest import RunningNode, running_node

from dovetail.console.web.http import ENDPOINTS
from dovetail.console.web.openapi import document

_CASES = int(os.environ.get("FUZZ_CASES", "0"))
#: Examples of each operation. There are some thirty-five.
EXAMPLES = max(3, _CASES // 40)
#: In a long run also the systematic ones: each bound of each field, some forty an operation.
PHASES = [Phase.explicit, Phase.generate] if _CASES else [Phase.generate]
#: Thousands of partitions are fine, and take the node seconds that say nothing here.
PARTITIONS_MAX = 4

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    with running_node(folder / "node") as node:
        with httpx.Client(base_url=node.http_url) as client:
            client.post("/v1/topics", json={"topic": "0", "partitions": 1})
            client.post("/v1/timelines", json={"timeline": "0"})
        yield node


# A live stream does not end by itself; tests of its own watch it.
schema = schemathesis.openapi.from_dict(document(ENDPOINTS)).exclude(path="/v1/live")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
def test_no_request_meets_a_defect(case: schemathesis.Case, fuzzed: RunningNode) -> None:
    """R3, U5: every answer is one that the document describes, and none is a defect."""
    body = case.body
    if isinstance(body, dict) and isinstance(body.get("partitions"), int):
        body["partitions"] = min(body["partitions"], PARTITIONS_MAX)
    response = case.call(base_url=fuzzed.http_url, timeout=30)
    unavailable = response.status_code == 503
    checks = [check for check in CHECKS if not (unavailable and check is not_a_server_error)]
    case.validate_response(response, checks=checks)


def test_the_node_serves_after_all_that(fuzzed: RunningNode) -> None:
    """R3: it is healthy, and its log has no defect."""
    assert httpx.get(f"{fuzzed.http_url}/readyz").status_code == 200
    assert "defect" not in fuzzed.log()
