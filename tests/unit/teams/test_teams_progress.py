"""Progress of teams, of what Spark tells."""

from typing import Any

from dovetail.pipeline.progress import ends_of, progress_of


def told(**more: Any) -> dict[str, Any]:
    source = {
        "endOffset": '{"t": {"0": 5, "1": 7}}',
        "latestOffset": {"t": {"0": 9, "1": 7, "2": 1}},
    }
    return {"batchId": 3, "sources": [source], "numInputRows": 12, **more}


def test_lag_counts_what_is_behind_the_last_batch() -> None:
    """T11: lag, rate and state, also before the first micro-batch and while failing."""
    one = progress_of("a", told(processedRowsPerSecond=4.25, durationMs={"triggerExecution": 80}))
    assert (one.state, one.lag, one.works, one.batch_ms) == ("working", 5, 12, 80)
    assert one.cells[:4] == ("a", "working", 5, 4.2)
    assert ends_of(told()) == {("t", 0): 5, ("t", 1): 7}
    assert progress_of("a", None).state == "starting"
    failing = progress_of("a", told(), failures=2, reason="broken\nat line 1")
    assert (failing.state, failing.reason) == ("failing", "broken")
    idle = {"batchId": 4, "sources": [{"endOffset": None, "latestOffset": None}]}
    assert progress_of("a", idle).state == "idle"
