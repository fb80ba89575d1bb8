"""How far a run is, in a line every 15 seconds, and each failure as it happens.

    38 %   2 min 10 s   2,412 of 6,263 tests, 1 failed; at process/test_kill.py, sim/test_log_sim.py

`make test` loads it (`pytest -p tests.progress`) in place of pytest's dots, which do not say what
runs in the workers. The share is one of time: `LONG_FILES_S` has how long the long files take, and
every other test counts for a moment. The same table puts long files first, so that no worker is
left alone with one at the end.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

#: Files that take ten seconds or more beside two other workers on two cores, and how many.
LONG_FILES_S = {
    "tests/process/teams/test_teams_cluster.py": 170,
    "tests/process/teams/test_teams_again.py": 105,
    "tests/process/outbox/test_inbox_kills.py": 105,
    "tests/process/spark/test_spark_tables.py": 105,
    "tests/process/test_cluster_matrix.py": 100,
    "tests/process/teams/test_teams_engine.py": 95,
    "tests/process/demo/test_demo_run.py": 80,
    "tests/process/teams/test_teams_kafka.py": 70,
    "tests/process/test_cluster_cli.py": 65,
    "tests/process/test_cluster.py": 65,
    "tests/process/console/test_console.py": 60,
    "tests/process/test_cli.py": 50,
    "tests/unit/timeline/test_timeline_brokers.py": 50,
    "tests/process/outbox/test_outbox_faults.py": 45,
    "tests/process/test_kill.py": 45,
    "tests/compat/test_clients_groups.py": 45,
    "tests/process/test_storage_repair.py": 40,
    "tests/process/access/test_access.py": 40,
    "tests/process/teams/test_teams_kills.py": 40,
    "tests/compat/test_streams.py": 35,
    "tests/process/outbox/test_outbox_relay.py": 35,
    "tests/compat/test_clients_retry.py": 35,
    "tests/compat/test_transactions.py": 30,
    "tests/process/console/test_console_sign_in.py": 25,
    "tests/process/timeline/test_timeline_cli.py": 25,
    "tests/process/test_foreign_text.py": 25,
    "tests/unit/coordination/test_etcd_faults.py": 25,
    "tests/compat/test_due_records.py": 25,
    "tests/compat/test_clients_admin.py": 25,
    "tests/process/console_api/test_console_lag.py": 25,
    "tests/process/console_api/test_console_receiving.py": 25,
    "tests/process/due/test_due_node.py": 25,
    "tests/fuzz/test_listener.py": 20,
    "tests/process/timeline/test_timeline_faults.py": 20,
    "tests/process/test_planted_failures.py": 20,
    "tests/sim/test_planted_share_bugs.py": 20,
    "tests/process/timeline/test_timeline_cluster.py": 20,
    "tests/process/cli/test_pipeline_jobs.py": 20,
    "tests/process/outbox/test_outbox_schedule.py": 20,
    "tests/compat/test_clients_errors.py": 20,
    "tests/unit/kafka/test_round_trip.py": 20,
    "tests/process/stream/test_stream_failures.py": 20,
    "tests/process/cli/test_lead.py": 20,
    "tests/compat/test_java_client.py": 15,
    "tests/compat/test_clients_produce.py": 15,
    "tests/process/teams/test_teams_cancel.py": 15,
    "tests/process/timeline/test_timeline_node.py": 15,
    "tests/sim/test_planted_transaction_bugs.py": 15,
    "tests/process/docs/test_docs_run.py": 15,
    "tests/unit/kafka/test_foreign_codec.py": 15,
    "tests/unit/wire/test_wire_budget.py": 15,
    "tests/fuzz/test_listener_floods.py": 15,
    "tests/process/teams/test_teams_worker.py": 15,
    "tests/sim/test_broker_scenes.py": 15,
    "tests/process/test_foreign_requests.py": 15,
    "tests/compat/test_compaction.py": 15,
    "tests/process/teams/test_teams_front.py": 15,
    "tests/fuzz/test_codec.py": 15,
    "tests/sim/timeline/test_loader_sim.py": 15,
    "tests/fuzz/test_listener_memory.py": 15,
    "tests/compat/test_mirror_maker.py": 15,
    "tests/sim/test_compaction_sim.py": 10,
    "tests/unit/election/test_shared_logs.py": 10,
    "tests/sim/timeline/test_fairness_sim.py": 10,
    "tests/process/cli/test_top.py": 10,
    "tests/compat/test_connect.py": 10,
    "tests/process/console_api/test_console_work.py": 10,
    "tests/compat/test_new_groups.py": 10,
    "tests/unit/cli/test_cli_commands.py": 10,
    "tests/unit/coordination/test_etcd_conformance.py": 10,
    "tests/unit/teams/test_teams_packing.py": 10,
    "tests/process/stream/test_stream_two.py": 10,
    "tests/fuzz/test_listener_batches.py": 10,
    "tests/sim/test_repair_planted_bugs.py": 10,
    "tests/process/teams/test_teams_gather.py": 10,
    "tests/unit/test_style.py": 10,
    "tests/compat/test_clients_consume.py": 10,
    "tests/sim/test_brokers_sim.py": 10,
}
#: What a test of any other file takes.
_TEST_S = 0.03
_LINE_S = 15.0


def file_of(test: str) -> str:
    """The file of a test, by its id."""
    return test.partition("::")[0]


def long_files_first(tests: list[pytest.Item]) -> None:
    """Sorts the tests; those of a file stay together and in their order."""
    tests.sort(key=lambda test: -LONG_FILES_S.get(file_of(test.nodeid), 0))


class Progress:
    """Counts; pure but for the clock's readings that it is given."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._weights: dict[str, float] = {}
        self._ended: set[str] = set()
        self._running: list[str] = []
        self.failed = 0

    def collected(self, tests: Iterable[str]) -> None:
        """All tests of the run."""
        tests = list(tests)
        by_file = Counter(map(file_of, tests))
        for test in tests:
            file = file_of(test)
            seconds = LONG_FILES_S.get(file, by_file[file] * _TEST_S)
            self._weights[test] = seconds / by_file[file]

    def started(self, test: str) -> None:
        self._running.append(test)

    def ended(self, test: str) -> None:
        self._ended.add(test)
        if test in self._running:
            self._running.remove(test)

    def line(self, now_s: float) -> str:
        """How far it is."""
        passed = elapsed(now_s - self._began_s)
        if not self._weights:
            return f"  0 %  {passed}   looking for tests"

        # Rounded down, so that 100 % means all.
        left = sum(weight for test, weight in self._weights.items() if test not in self._ended)
        share = 100 - math.ceil(100 * left / sum(self._weights.values()))
        at = ", ".join(file_of(test).removeprefix("tests/") for test in self._running)
        return (
            f"{share:3d} %  {passed}   {len(self._ended):,} of {len(self._weights):,} tests,"
            f" {self.failed} failed" + (f"; at {at}" if at else "")
        )


def elapsed(seconds: float) -> str:
    """A time as one reads it in a column."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:2d} min {rest:2d} s"


class Reporter:
    """What pytest tells, handed to `Progress`; lines to the terminal."""

    def __init__(self) -> None:
        self._terminal: Any = None
        self._progress = Progress(time.monotonic())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def _show(self) -> None:
        while not self._over.wait(_LINE_S):
            self._say(self._progress.line(time.monotonic()))

    def _say(self, line: str) -> None:
        self._terminal.write_line(line)
        self._terminal.flush()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._terminal = session.config.pluginmanager.getplugin("terminalreporter")
        self._thread.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._progress.collected(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._progress.collected(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._progress.started(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._progress.ended(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._progress.failed += 1
            self._say(f"FAILED {report.nodeid} ({report.when})")

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Any:
        """Counted for the summary as ever, and without a letter."""
        status = yield
        return status and (status[0], "", status[2])

    def pytest_sessionfinish(self) -> None:
        self._over.set()
        self._thread.join()
        self._say(self._progress.line(time.monotonic()))


def pytest_configure(config: pytest.Config) -> None:
    """One reporter, in the process that has the terminal."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(), "progress")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long_files_first(items)
