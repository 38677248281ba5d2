# midfold: `make demo` shows it, `make test` proves it. Both need only python3 (3.11+), git and make.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# What is imported is compiled once, whatever the shell says: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
# One more than there are cores: many tests wait for processes and clocks.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

.PHONY: demo test suite test-all clients soak check mutants bench e2e-model lock clean help
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(VENV)/.run: requirements/run.txt pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $(VENV) requirements/run.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $(VENV) requirements/dev.txt
	@touch $(VENV)/.run $@

$(VENV)/.all: requirements/all.txt pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py $(VENV) requirements/all.txt
	@touch $(VENV)/.run $(VENV)/.dev $@

demo: $(VENV)/.run  ## show the main job on a real transcript
	@$(BIN)/midfold inspect examples/coding-session.json
	@echo
	@$(BIN)/midfold compact examples/coding-session.json --context-length 32000

check: $(VENV)/.dev  ## ruff, mypy strict, import-linter, shape test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q tests/test_shape.py

# The checks take one core and a minute: the tests need not wait for them.
test: $(VENV)/.dev  ## everything that must hold, in a few minutes
	$(BIN)/pytest -q tests/test_imports.py
	@$(MAKE) --no-print-directory -j2 check suite

suite: $(VENV)/.dev
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal --ignore=tests/test_imports.py --ignore=tests/test_shape.py

test-all: $(VENV)/.all  ## as test, with the shared transcripts, Hermes, Ray and a browser installed and required
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium)
	HYPOTHESIS_PROFILE=all MIDFOLD_REQUIRE_ALL=1 $(MAKE) test

clients: $(VENV)/.dev  ## released clients through midfold run, installed under .bench; writes docs/reference/clients.md
	MIDFOLD_REQUIRE_ALL=1 $(BIN)/pytest -v tests/e2e/test_real_clients.py tests/e2e/test_vercel_ai_sdk.py
	$(BIN)/python tools/gen_clients_doc.py

soak: $(VENV)/.dev  ## the long runs at full size
	HYPOTHESIS_PROFILE=soak MIDFOLD_SOAK=1 $(BIN)/pytest -q -n auto tests/property
	MIDFOLD_SOAK=1 $(BIN)/pytest -q tests/e2e/test_store_concurrency.py tests/e2e/test_store_faults.py tests/e2e/test_store_full_disk.py tests/e2e/test_store_corruption.py
	MIDFOLD_SOAK=1 $(BIN)/pytest -q -s tests/e2e/test_gateway_soak.py tests/e2e/test_long_task.py tests/e2e/test_trajectory_runs.py
	HYPOTHESIS_PROFILE=soak $(BIN)/pytest -q -s tests/e2e/test_gateway_fuzz.py

mutants: $(VENV)/.dev  ## whether the tests named in tests/mutants.toml notice each of its changes of the code
	$(BIN)/python tools/mutants.py

bench: $(VENV)/.dev  ## side-by-side runs against peers, each printing a ratio
	$(BIN)/python -m bench

e2e-model: $(VENV)/.dev  ## summaries by a real model served on this machine; compiles its server on first use
	$(BIN)/python -m e2e

lock: $(VENV)/.dev  ## recompile the requirement files from pyproject.toml
	$(BIN)/python tools/lock.py

clean:  ## remove everything that make created
	rm -rf $(VENV) .bench .e2e build dist
