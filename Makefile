# Needs Python 3.11 or newer, make, and access to the package registries.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
# Extra pytest options. `make test-all` sets it to include the tests marked `long`.
SELECT ?=
# Suites run in parallel, so each has its own cache directory: $(call pytest,SUITE,OPTIONS)
pytest = $(BIN)/python -m pytest tests/$(1) -o cache_dir=.pytest_cache/$(1) $(SELECT) $(2)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check unit simulation envs contract live lab lab-build lab-test api e2e lab-and-api bench docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.done ## create .venv with Oars and the development tools

.venv/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Oars needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --compile-bytecode -e '.[all]' --group dev
	@touch $@

demo: setup ## run the demo job on all three engines
	$(BIN)/python examples/demo/demo.py

check: setup ## check format, lint, types and import contracts
	$(BIN)/ruff format --check src tests bench examples lab docs/generate.py
	$(BIN)/ruff check src tests bench examples lab docs/generate.py
	$(BIN)/mypy src tests bench lab docs/generate.py
	$(BIN)/lint-imports --no-cache

unit: setup ## unit tests
	$(call pytest,unit)

simulation: setup ## simulated histories of users and faults against the real operator
	$(call pytest,simulation)

envs: setup ## build the engine environments that the tests need and .venv does not contain
	$(BIN)/oars env build --engine mars
	$(BIN)/oars env build --engine mars --set mars.distribution=pymars

contract: envs ## run the contracts of oars.testing against each engine and each place
	$(call pytest,contract)

live: envs ## tests with real engine processes on this machine
	$(call pytest,live)

lab: setup ## start a real Kubernetes on this machine for tests (as root; the first start takes about 15 minutes)
	$(BIN)/python -m lab up

lab-build: setup ## build the programs and images of the lab that are not cached yet
	$(BIN)/python -m lab build

lab-test: lab-build ## tests of the lab itself
	$(call pytest,lab,-p lab.fixtures)

api: lab-build ## tests against a real control plane with simulated pods: client, operator
	$(call pytest,api,-p lab.fixtures)

e2e: lab-build envs ## tests with real pods: every engine, every mode
	$(call pytest,e2e,-p lab.fixtures)

# Building Kubernetes takes longest, so it starts first. Lint, types and unit tests run beside it, then lab-and-api and
# e2e in parallel, each on a Kubernetes of its own because the API tests stop theirs at times. The contract and live
# tests, which need no Kubernetes, run in the foreground meanwhile. The background output is printed at the end; until
# then it is in .lab-test.log. A failure stops nothing: all results are shown.
PARALLEL = $(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target

test: setup ## set up and run all tests except those marked `long`
	@{ $(PARALLEL) lab-build check unit simulation; first=$$?; $(PARALLEL) lab-and-api e2e; second=$$?; \
	  [ $$first -eq 0 ] && [ $$second -eq 0 ]; } > .lab-test.log 2>&1 & background=$$!; \
	$(MAKE) --no-print-directory --keep-going contract live; local=$$?; \
	echo "waiting for the lint, unit and Kubernetes tests (.lab-test.log)"; \
	wait $$background; background=$$?; cat .lab-test.log; \
	[ $$local -eq 0 ] && [ $$background -eq 0 ]

test-all: ## the same with the tests marked `long`, which repeat at length what others cover
	$(MAKE) --no-print-directory test SELECT='-m "long or not long"'

lab-and-api: export OARS_LAB_DIR = $(CURDIR)/.lab
lab-and-api: lab-build
	$(call pytest,lab,-p lab.fixtures); lab=$$?; $(call pytest,api,-p lab.fixtures) && [ $$lab -eq 0 ]

bench: setup ## measure performance against the engines' own tools; writes bench/results/*.json
	$(BIN)/python -m bench

docs: setup ## generate reference/spec.md, benchmarks.md and the Helm chart
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/helm/oars/generate.py

clean: ## remove everything that make created in this directory
	@[ ! -d .lab ] || OARS_LAB_DIR=$(CURDIR)/.lab $(BIN)/python -m lab down
	rm -rf .lab .lab-test.log .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
