"""An archive in Iceberg: each record once, with commits that are refused, lost or never sent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.utils.config import Config

from dovetail.errors import InvalidInput
from dovetail.kafka.client.brokers import Brokers
from dovetail.spark import iceberg
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS

NAME = ("dovetail", "orders")
FIRST = ("orders", 0)
DAY_MICROS = 86_400_000_000


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    with SqlCatalog(
        "dovetail", uri=f"sqlite:///{tmp_path / 'catalog.sqlite'}", warehouse=tmp_path.as_uri()
    ) as made:
        iceberg._created(made, NAME, "day")
        yield made


def job() -> Any:
    """Nothing here starts Spark."""
    nothing: Any = None
    return iceberg._Job(nothing, nothing, {}, "orders", "day", 1_000_000, {})


def files(catalog: Any, name: str, offsets: range, **further: Any) -> Any:
    """What Spark writes: a file with the records of some offsets."""
    folder = f"{catalog.load_table(NAME).location()}/data/{name}"
    count = len(offsets)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([str(at).encode() for at in offsets]),
        "topic": pa.array(["orders"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array(offsets, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * count, pa.int32()),
        "headers": pa.nulls(count, COLUMNS_WITH_HEADERS.field("headers").type),
    }
    path = Path(folder.removeprefix("file://"))
    path.mkdir(parents=True)
    pq.write_table(pa.table(columns | further), path / "part-0.parquet")
    return iceberg._Files(folder, [f"{folder}/part-0.parquet"])


def commit(catalog: Any, made: Any, start: int, end: int) -> int:
    """Commits, and tells how many rows count as ours."""
    run = job()
    iceberg._committed(run, catalog, NAME, made, {FIRST: start}, {FIRST: end})
    return int(run.rows)


def offsets(catalog: Any) -> list[int]:
    found = catalog.load_table(NAME).scan().to_arrow().column("offset").to_pylist()
    return sorted(found)


class Disturbed:
    """A catalog that does something at the first commit."""

    def __init__(self, catalog: Any, before: Callable[[], None], after: Exception | None) -> None:
        self._catalog, self._before, self._after = catalog, before, after

    def load_table(self, name: Any) -> Any:
        table = self._catalog.load_table(name)
        table.catalog = self
        return table

    def commit_table(self, *given: Any) -> Any:
        before, self._before = self._before, lambda: None
        before()
        answer = self._catalog.commit_table(*given)
        after, self._after = self._after, None
        if after is not None:
            raise after
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


def disturbed(
    catalog: Any, before: Callable[[], None] = lambda: None, after: Exception | None = None
) -> Any:
    return Disturbed(catalog, before, after)


def test_two_that_archive_the_same_records_store_them_once(catalog: Any) -> None:
    """T13: the second is refused, finds the positions of the first, and drops its
    files; it goes on behind them."""
    mine, other = files(catalog, "mine", range(10)), files(catalog, "other", range(8))

    def overtake() -> None:
        assert commit(catalog, other, 0, 8) == 8

    assert commit(disturbed(catalog, overtake), mine, 0, 10) == 0
    assert offsets(catalog) == list(range(8))
    assert commit(catalog, files(catalog, "again", range(8, 10)), 8, 10) == 2
    assert offsets(catalog) == list(range(10))


def test_what_others_change_does_not_refuse_an_archive(catalog: Any) -> None:
    """T13: a commit of another engine, of another topic, and one that sets the repetition of
    commits anew: ours is prepared again, and stored once."""
    made = files(catalog, "made", range(10))

    def others() -> None:
        table = catalog.load_table(NAME)
        table.append(table.scan().to_arrow().slice(0, 0))
        with table.transaction() as change:
            change.set_properties({iceberg.POSITIONS: '{"bills": {"0": 7}}', iceberg._RETRIES: "4"})

    assert commit(disturbed(catalog, others), made, 0, 10) == 10
    assert offsets(catalog) == list(range(10))
    table = catalog.load_table(NAME)
    assert iceberg._positions(table) == {("bills", 0): 7, FIRST: 10}
    assert table.properties[iceberg._RETRIES] == "0"


def test_a_commit_whose_answer_is_lost_is_not_repeated(catalog: Any) -> None:
    """T13: the positions tell that it was stored, and whose it was."""
    made = files(catalog, "made", range(10))
    assert commit(disturbed(catalog, after=CommitStateUnknownException("lost")), made, 0, 10) == 10
    assert offsets(catalog) == list(range(10))


def test_files_without_a_commit_do_not_count(catalog: Any) -> None:
    """T13: killed between the files and the commit; the next run archives the same records."""
    files(catalog, "killed", range(10))
    assert offsets(catalog) == []
    assert commit(catalog, files(catalog, "next", range(10)), 0, 10) == 10
    assert offsets(catalog) == list(range(10))


def test_columns_come_and_widen_and_others_are_refused(catalog: Any) -> None:
    """T13: a new column is null in older rows, int becomes long, long does not become text."""
    one = pa.array([1], pa.int32())
    assert commit(catalog, files(catalog, "a", range(1), n=one), 0, 1) == 1
    assert commit(catalog, files(catalog, "b", range(1, 2), n=pa.array([1 << 40])), 1, 2) == 1
    assert commit(catalog, files(catalog, "c", range(2, 3), m=pa.array(["x"])), 2, 3) == 1
    with pytest.raises(InvalidInput, match="do not fit the table"):
        commit(catalog, files(catalog, "d", range(3, 4), n=pa.array(["x"])), 3, 4)
    rows = catalog.load_table(NAME).scan().to_arrow().sort_by("offset")
    assert rows.column("n").to_pylist() == [1, 1 << 40, None]
    assert rows.column("m").to_pylist() == [None, None, "x"]


def test_a_table_is_asked_for_by_its_place(catalog: Any, tmp_path: Path) -> None:
    """T13: another period, a path that is no local folder, and a name without a namespace are
    refused."""
    with pytest.raises(InvalidInput, match="is partitioned by day, not by hour"):
        iceberg._created(catalog, NAME, "hour")
    for place, words in (
        (iceberg.Place("s3://bucket/orders"), "name a catalog of PyIceberg"),
        (iceberg.Place("orders", "prod"), "write namespace.table"),
        (iceberg.Place("shop.orders", "nowhere"), "PyIceberg's catalog 'nowhere'"),
    ):
        with pytest.raises(InvalidInput, match=words), iceberg._opened(place, "orders"):
            pass
    with pytest.raises(InvalidInput, match="'offset' is there already"):
        iceberg.archive(job().spark, Brokers("x:1"), "orders", place, columns={"offset": "1"})
    assert iceberg.Place(str(tmp_path)).found
    assert not iceberg.Place(str(tmp_path / "elsewhere")).found


def test_a_catalog_of_the_user_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T13: one of PyIceberg's configuration; the namespace is made if it is not there."""
    for name, value in (
        ("TYPE", "sql"),
        ("URI", f"sqlite:///{tmp_path / 'theirs.sqlite'}"),
        ("WAREHOUSE", f"file://{tmp_path}"),
    ):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{name}", value)
    # It is read once, at the first import.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    place = iceberg.Place("shop.eu.orders", "prod")
    with iceberg._opened(place, "orders") as (catalog, name):
        assert name == ("shop", "eu", "orders")
        iceberg._created(catalog, name, "hour")
    with iceberg._opened(place, "orders") as (catalog, name):
        assert [str(one.transform) for one in catalog.load_table(name).spec().fields] == ["hour"]
