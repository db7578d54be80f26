# Two commands do everything, set-up included: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Programs that tests run beside them; outside of CI they are skipped where these cannot be had.
BESIDE := postgresql kcat redis chromium promtool

.PHONY: help install demo docs test lint types soak survey answers seeds bench nexmark clean java lock sbom $(BESIDE)
.DEFAULT_GOAL := help

help:
	@echo "make demo     see it work: a query on Spark in real time, two kills, the result checked"
	@echo "make test     everything that CI checks"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make install  only the set-up: .venv with Penstock, its tools and its benchmarks"
	@echo "make soak     longer runs with fresh seeds (SOAK_SECONDS=600 each)"
	@echo "make survey   which of 400 constructs of PySpark run, and why the others do not"
	@echo "make seeds    other seeds for mutants that theirs catches no more (ANEW=1: the quickest ones for all)"
	@echo "make lock     the lock files anew (UPGRADE=1: with the newest versions)"
	@echo "make sbom     the bill of materials of a release, in dist/"
	@echo "make bench    all of penstock bench, about 20 minutes"
	@echo "make nexmark  all figures of docs/benchmarks.md and a page of them, about two hours"

PIP := -m pip install --quiet --disable-pip-version-check
# The very files of the lock, on every Python. `make install LOCK=` takes what the index has today.
LOCK ?= requirements.lock
LOCKS := requirements-build.lock requirements.lock

$(BIN)/.installed: pyproject.toml bench/pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit("penstock needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Penstock and its tools into $(VENV)"
ifeq ($(LOCK),)
	@$(BIN)/python $(PIP) -e '.[dev]' -e bench
else
	@$(BIN)/python $(PIP) --require-hashes -r requirements-build.lock
	@$(BIN)/python $(PIP) --require-hashes --no-build-isolation -r $(LOCK)
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation -e . -e bench
	@$(BIN)/python -m pip check --disable-pip-version-check
endif
	@touch $@

install: $(BIN)/.installed

# For who changes dependencies or makes a release; in an environment of its own.
TOOLS := $(VENV)/tools/bin
$(TOOLS)/.installed: Makefile
	@$(PYTHON) -m venv $(VENV)/tools
	@$(TOOLS)/python $(PIP) 'uv>=0.5,<1' 'cyclonedx-bom>=7,<8'
	@touch $@

lock: $(TOOLS)/.installed
	@$(TOOLS)/python bin/lock $(if $(UPGRADE),--upgrade)

# Of what Penstock itself needs, in the versions that were tested, as CycloneDX.
sbom: $(TOOLS)/.installed
	@mkdir -p dist
	@$(TOOLS)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--constraint requirements.lock --output-file dist/requirements.txt pyproject.toml
	@$(TOOLS)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/penstock.cdx.json dist/requirements.txt
	@echo "dist/penstock.cdx.json, and the same versions with hashes in dist/requirements.txt"

java:
	@bin/ensure java

postgresql:
	@bin/ensure --optional postgresql

kcat:
	@bin/ensure --optional kcat kcat

redis:
	@bin/ensure --optional redis-server redis-server

# Checks alert rules and plays series to them; long runs let its Prometheus scrape everything.
promtool:
	@bin/ensure --optional promtool prometheus

chromium:
	@bin/ensure --optional chromium chromium

demo: $(BIN)/.installed java
	@$(BIN)/penstock demo

$(BIN)/.docs-installed: $(BIN)/.installed
	@$(BIN)/python $(PIP) -e '.[docs]'
	@touch $@

# Fails on any warning; loads nothing from the network, and neither do the pages.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(BIN)/.docs-installed
	@$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.installed
	$(BIN)/mypy

# Three processes on two cores, since many tests wait for what they started or killed. Which file of
# tests goes where, and in which order: tests/balance.py.
JOBS ?= 3
PYTEST := $(BIN)/pytest -p no:cacheprovider --dist loadfile

# Spark's classes, as Java can load them at once, and a home of Spark's for tests.
$(VENV)/spark-classes.jsa: tests/harness/java.py $(BIN)/.installed | java
	@$(BIN)/python tests/harness/java.py 2>/dev/null || echo "no archive of Spark's classes: tests take longer"

# Hundreds of Python processes are started: what one has compiled, the next one finds.
unexport PYTHONDONTWRITEBYTECODE
test: $(VENV)/spark-classes.jsa lint $(BESIDE)
	$(PYTEST) -n $(JOBS)

# Each long test repeats itself with fresh seeds for so long; two run at a time.
SOAK_SECONDS ?= 600
# What is asked of state that is on disk and always let go (tests/harness/rooms.py).
ON_DISK := tests/oracle tests/unit/ops tests/engine/test_under_fire.py \
	$(addprefix tests/sim/test_,exactly_once.py standbys.py rescaling.py joined_stages.py)
soak: export SOAK_SECONDS := $(SOAK_SECONDS)
soak: $(BIN)/.installed java $(BESIDE)
	PENSTOCK_ANSWERS=anew $(PYTEST) -n 2 tests/oracle --timeout 0
	PENSTOCK_STATE=mapped $(PYTEST) -n 2 $(ON_DISK) --timeout 0
	PENSTOCK_SOAK=1 $(PYTEST) -n 2 tests/property --timeout 0
	PENSTOCK_SOAK=1 $(PYTEST) -n 2 -m soak --timeout 0

# Which constructs run, as in batch Spark; `make soak` checks how many.
survey: $(BIN)/.installed java
	@PYTHONPATH=tests $(BIN)/python -m survey

# What batch Spark answers to the tests, remembered anew (tests/harness/answers.py).
answers: $(BIN)/.installed java
	PENSTOCK_ANSWERS=write $(PYTEST) -n 2 tests/oracle

# Which seeds catch the mutants of the simulators, after a change that makes their tests slow.
seeds: $(BIN)/.installed
	PENSTOCK_SEEDS=$(if $(ANEW),anew,write) $(PYTEST) -n 2 tests/sim -k 'catches or noticed' --timeout 0

bench: $(BIN)/.installed java
	$(BIN)/penstock bench log
	$(BIN)/penstock bench ops
	$(BIN)/penstock bench small
	$(BIN)/penstock bench start
	$(BIN)/penstock bench realtime
	$(BIN)/penstock bench recovery
	$(BIN)/penstock bench connector
	$(BIN)/penstock bench result
	$(BIN)/penstock bench reports
	$(BIN)/penstock bench checkpoints
	$(BIN)/penstock bench scale
	$(BIN)/penstock bench handover
	$(BIN)/penstock bench cluster
	$(BIN)/penstock bench deliver
	$(BIN)/penstock bench ui
	$(BIN)/penstock bench gateway

# A bar that is missed is a figure, too: the rest is measured all the same.
RESULTS ?= nexmark-results
QUERIES := q1 q2 q3 q4 q5 q6 q7 q8
nexmark: $(BIN)/.installed java
	@mkdir -p $(RESULTS)
	-$(BIN)/penstock nexmark generate --json > $(RESULTS)/generate.json
	-for q in $(QUERIES); do $(BIN)/penstock nexmark run $$q --rate 10000 --results $(RESULTS); done
	-$(BIN)/penstock nexmark compare $(QUERIES) --results $(RESULTS) --json > $(RESULTS)/compare.json
	-$(BIN)/penstock nexmark protocols --results $(RESULTS) --json > $(RESULTS)/protocols.json
	-for q in $(QUERIES); do $(BIN)/penstock nexmark saturate $$q --results $(RESULTS); done
	-$(BIN)/penstock nexmark recovery --json > $(RESULTS)/recovery.json
	$(BIN)/penstock nexmark report --results $(RESULTS)

clean:
	rm -rf site $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
