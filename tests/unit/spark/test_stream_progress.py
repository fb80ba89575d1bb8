"""What Spark reports of a query, as names, lag and rates."""

from dovetail.spark.offsets import progress_of


def test_lag_follows_from_positions() -> None:
    """T20, F7b: by partition; one that is new or was created again is not behind."""
    source = {
        "endOffset": '{"a": {"0": 5, "1": 9}, "b": {"0": 2}}',
        "latestOffset": {"a": {"0": 8, "1": 4, "2": 3}, "b": {"0": 2}},
        "numInputRows": 3,
        "processedRowsPerSecond": 1.5,
    }
    (one,) = progress_of({"sources": [source]})
    assert one.topics == ("a", "b")
    assert one.behind == {("a", 0): 3, ("a", 1): 0, ("a", 2): 0, ("b", 0): 0}
    assert (one.lag, one.rows, one.rows_per_s) == (3, 3, 1.5)


def test_what_is_not_reported_is_not_known() -> None:
    """T20: before the first micro-batch, in Spark 4.1, and of other sources."""
    assert progress_of(None) == []
    assert progress_of({}) == []
    (one,) = progress_of({"sources": [{"endOffset": {"a": {"0": 5}}, "latestOffset": None}]})
    assert one.lag is None
    others = [{"endOffset": 7}, {"endOffset": "7"}, {"endOffset": "no"}, {"endOffset": None}]
    assert progress_of({"sources": [*others, {"endOffset": {"logOffset": 3}}]}) == []
