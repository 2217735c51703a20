# Two commands do everything on a fresh Debian 12 host with Python 3.11, make and git:
#   make serve   sets up and starts Weir with a real model, a tenant and a key
#   make test    sets up and runs lint, types, import contracts and tests
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check --quiet --quiet
MODEL  ?= smollm2
JOBS   ?= 2

.PHONY: help serve demo test test-all lint types imports unit gpu-test release-check clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/bin/python:
	@echo "weir: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements.lock requirements-nodeps.lock pyproject.toml | $(VENV)/bin/python
	@echo "weir: installing the locked dependencies (a minute or two the first time)"
	@$(PIP) install -r requirements.lock
	@$(PIP) install --no-deps -r requirements-nodeps.lock
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock requirements-dev-nodeps.lock $(VENV)/.run
	@echo "weir: installing what the tests need"
	@$(PIP) install -r requirements-dev.lock
	@$(PIP) install --no-deps -r requirements-dev-nodeps.lock
	@touch $@

serve: $(VENV)/.run
	@$(BIN)/weir serve $(MODEL) --demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

unit: $(VENV)/.dev
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not gpu and not heavy"

test: lint types imports unit

test-all: lint types imports
	$(BIN)/pytest -m "not gpu"

# Everything that must hold on a GPU; its result is recorded in benchmarks/results/gpu_tests.csv.
gpu-test: $(VENV)/.dev
	$(BIN)/python -m benchmarks.gpu_tests

# Fails when kernels/ or the runner changed since the last recorded GPU run, or that run failed.
release-check:
	@$(PYTHON) -m benchmarks.gpu_tests --check

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
