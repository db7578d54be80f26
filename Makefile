# Two commands do everything, set-up included: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint types soak bench clean java
.DEFAULT_GOAL := help

help:
	@echo "make demo    see it work: a query on Spark in real time, two kills, the result checked"
	@echo "make test    everything that CI checks"
	@echo "make soak    longer runs with fresh seeds (SOAK_SECONDS=600)"
	@echo "make bench   penstock bench log and penstock bench ops"

$(BIN)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("penstock needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Penstock and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

java:
	@command -v java >/dev/null 2>&1 && java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])' || \
	  { echo "Java 17 or newer is missing (Spark needs it); install it with: apt-get install openjdk-17-jre-headless"; exit 1; }

demo: $(BIN)/.installed java
	@$(BIN)/penstock demo

lint: $(BIN)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(BIN)/.installed
	$(BIN)/mypy

# Tests that wait on clocks and disks have the machine for themselves; those that only compute run
# beside the ones that wait for Spark.
test: $(BIN)/.installed java lint types
	$(BIN)/pytest tests/test_tidy.py tests/conformance tests/integration
	@mkdir -p .pytest_cache
	@$(BIN)/pytest -p no:cacheprovider tests/unit tests/property tests/transcripts tests/sim \
	  > .pytest_cache/computing.txt 2>&1 & computing=$$!; \
	$(BIN)/pytest tests/oracle; oracle=$$?; \
	wait $$computing; computing=$$?; cat .pytest_cache/computing.txt; \
	exit $$((oracle | computing))

soak: $(BIN)/.installed java
	PENSTOCK_SOAK=1 $(BIN)/pytest tests/property --timeout 0
	PENSTOCK_SOAK=1 $(BIN)/pytest -m soak --timeout 0

bench: $(BIN)/.installed java
	$(BIN)/penstock bench log
	$(BIN)/penstock bench ops

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
