# `make help` lists the verbs. Each does the set-up that it needs.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PY := .venv/bin/python
SEEDS ?= 20000
FUZZ_CASES ?= 20000
SOAK_ROUNDS ?= 200
SOAK_MINUTES ?= 60
# Half of what a short-lived process costs is compiling, where Python may not keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this help.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: pyproject.toml constraints.txt scripts/setup setup.py src/dovetail/_record_check.c src/dovetail/log/compaction/_key_map.c src/dovetail/spark/_records.c
	@scripts/setup dev bench
	@touch $@

.venv/ready-demo: pyproject.toml constraints.txt scripts/setup scripts/java
	@test -e .venv/ready || scripts/setup demo
	@scripts/java
	@touch $@

.PHONY: demo
demo: .venv/ready-demo ## A shop on all of it, with a proof at the end: make demo ARGS='--chaos'
	@$(PY) -m examples.shop.demo $(ARGS)

.PHONY: check
check: lint types style ## Lint, formatting, types and house style; seconds.

.PHONY: lint types style java-classes
lint: .venv/ready
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

types: .venv/ready
	@.venv/bin/mypy

style: .venv/ready
	@$(PY) -m pytest -q tests/unit/test_style.py tests/unit/test_house.py

# Spark's classes, parsed once for all that the tests start.
java-classes: .venv/ready
	@$(PY) -m tests.java

.PHONY: test
test: .venv/ready ## All that CI runs: checks, unit, simulation, process, compatibility, fuzz.
	@# It holds up to 5 GB at once in the folder for temporary files; a full disk looks like hundreds of failures.
	@df -Pm "$${TMPDIR:-/tmp}" | awk 'NR == 2 && $$4 < 5500 {print "make test needs 5.5 GB in " $$6 ", which has " $$4 " MB: make room, or set TMPDIR"; exit 1}'
	@scripts/system-packages kcat:kcat node:nodejs npm:npm mariadbd:mariadb-server-core ip:iproute2 faketime:faketime promtool:prometheus
	@scripts/browser
	@scripts/java
	@# The style and house tests are among all tests.
	@$(MAKE) --no-print-directory -j 2 lint types java-classes
	@# Many tests wait, so more than two share two cores. Long files first (tests/progress.py), so that no worker is left alone with one in the end.
	@PATH="$$PWD/.venv/bin:$$PATH" $(PY) -m pytest -q -n 4 --dist loadfile --no-loadscope-reorder --durations=15 \
		-p tests.progress -o console_output_style=classic tests

.PHONY: docs
docs: .venv/ready ## The site of docs/, into site/; reads as plain Markdown too.
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q
	@echo "open site/index.html"

.PHONY: wheel
wheel: .venv/ready ## The distribution dovetailmq into dist/: wheels with the compiled parts for this machine and for arm64, and the sources.
	@$(PY) -m build --outdir dist
	@scripts/wheel-arm64
	@for wheel in dist/dovetailmq-*.whl; do \
		$(PY) -m zipfile -l $$wheel | grep '_record_check.*\.so' >/dev/null || { echo "$$wheel has no compiled parts: is there a C compiler?"; exit 1; }; done

.PHONY: bench
bench: .venv/ready ## The figures of docs/benchmarks.md, against peers in the same run.
	@scripts/system-packages redis-server:redis-server nats-server:nats-server beanstalkd:beanstalkd
	@scripts/java
	@PATH="$$PWD/.venv/bin:$$PATH:/usr/sbin"; export PATH; missed=0; \
	for program in log beside_kafka clients size strangers cluster outbox stream assignments timeline pipeline; do $(PY) -m bench.$$program || missed=1; done; exit $$missed

.PHONY: sim
sim: .venv/ready ## Simulations with many seeds: make sim SEEDS=100000
	@SIM_SEEDS=$(SEEDS) $(PY) -m pytest -q --timeout 0 tests/sim

.PHONY: soak
soak: .venv/ready ## Long simulations, fuzz and kill runs: make soak SEEDS=50000 FUZZ_CASES=100000 SOAK_ROUNDS=500
	@$(MAKE) --no-print-directory sim
	@SCENE_SEEDS=10 $(PY) -m pytest -q --timeout 0 tests/sim/test_broker_scenes.py
	@FUZZ_CASES=$(FUZZ_CASES) $(PY) -m pytest -q --timeout 0 tests/fuzz
	@LOAD_PAUSE_S=0 SOAK_ROUNDS=$(SOAK_ROUNDS) $(PY) -m pytest -q --timeout 0 tests/process/test_kill.py tests/process/test_cluster_matrix.py
	@STRANGERS=1 $(PY) -m pytest -q --timeout 0 tests/compat/test_frameworks.py
	@SPARK_DRIVER_KILLS=2 ICEBERG_KILLS=8 SPARK_PROGRAMS=1 SPARK_VERSIONS=4.0.5,4.1.4,4.2.1 $(PY) -m pytest -q --timeout 0 tests/process/spark
	@TEAM_JOBS=100000 TEAM_FAULTS=15 TEAM_BROKERS=3 TEAM_SPARK='local-cluster[2,1,1024]' $(PY) -m pytest -q -s tests/process/teams/test_teams_kills.py
	@TEAM_JOBS=10000 TEAM_FAULTS=15 $(PY) -m pytest -q -s --timeout 0 tests/process/teams/test_teams_cluster.py tests/process/teams/test_teams_kafka.py
	@DEMO_MINUTES=3 DEMO_RATE=10 DEMO_CHAOS=relay,node,driver,worker,notifier,results,reminders $(PY) -m pytest -q --timeout 0 tests/process/demo
	@FOREIGN_EXAMPLES=$(SOAK_ROUNDS) $(PY) -m pytest -q --timeout 0 tests/process/test_foreign_text.py tests/process/test_foreign_requests.py
	@OUTBOX_EXAMPLES=$(SOAK_ROUNDS) $(PY) -m pytest -q --timeout 0 tests/process/outbox/test_outbox_property.py
	@MODEL_EXAMPLES=$(SOAK_ROUNDS) BROKER_MESSAGES=20000 $(PY) -m pytest -q --timeout 0 tests/unit/timeline/test_store_model.py tests/unit/timeline/test_timeline_brokers.py
	@UPGRADE_FROM=8fc62ae $(PY) -m pytest -q --timeout 0 tests/process/ops/test_upgrade.py
	@$(PY) -m tests.soak --minutes $(SOAK_MINUTES)
	@$(PY) -m bench.steady --minutes $(SOAK_MINUTES)
	@TIMELINE_MESSAGES=100000 CLUSTER_MESSAGES=100000 DELETED_MESSAGES=1000000 $(PY) -m pytest -q --timeout 0 tests/process/timeline
