# Everything a fresh machine needs: Python 3.11+, make and the package registries.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test check unit envs contract live lab lab-build lab-test api e2e lab-and-api bench docs clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.done ## make .venv with the project and its tools, so that .venv/bin/oars works

.venv/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Oars needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --compile-bytecode -e '.[all]' --group dev
	@touch $@

demo: setup ## run the main job on all three engines
	$(BIN)/python examples/demo/demo.py

check: setup ## format, lint, types, import contracts
	$(BIN)/ruff format --check src tests bench examples lab docs/generate.py
	$(BIN)/ruff check src tests bench examples lab docs/generate.py
	$(BIN)/mypy src tests bench lab docs/generate.py
	$(BIN)/lint-imports --no-cache

unit: setup ## pure tests
	$(BIN)/pytest tests/unit

envs: setup ## build the engine environments that the tests use and .venv lacks
	$(BIN)/oars env build --engine mars
	$(BIN)/oars env build --engine mars --set mars.distribution=pymars

contract: envs ## each engine and each place against the contracts of oars.testing
	$(BIN)/python tests/twice.py tests/contract

live: envs ## real engines as processes
	$(BIN)/python tests/twice.py tests/live

lab: setup ## a real Kubernetes on this machine, for tests (as root; the first time takes a quarter of an hour)
	$(BIN)/python -m lab up

lab-build: setup ## what the lab is made of, once (a test would not have the time)
	$(BIN)/python -m lab build

lab-test: lab-build ## the lab's own tests
	$(BIN)/python tests/twice.py tests/lab -p lab.fixtures

api: lab-build ## Kubernetes' control plane: the client, the operator, played pods
	$(BIN)/python tests/twice.py tests/api -p lab.fixtures

e2e: lab-build envs ## real pods of every engine, in every mode
	$(BIN)/python tests/twice.py tests/e2e -p lab.fixtures

# Three lines of tests side by side, for each waits a lot; two of them on a Kubernetes of their own, as the tests of the
# API take theirs away now and then. What those two say, checks and unit tests before them, is kept for the end, where it
# can be read in one piece.
test: setup ## set up and run every test
	@$(MAKE) --no-print-directory -j2 --output-sync=target check unit lab-and-api e2e > .lab-test.log 2>&1 & lab=$$!; \
	$(MAKE) --no-print-directory contract live; local=$$?; \
	echo "waiting for checks, unit tests and the tests on Kubernetes (.lab-test.log)"; \
	wait $$lab; lab=$$?; cat .lab-test.log; \
	[ $$local -eq 0 ] && [ $$lab -eq 0 ]

lab-and-api: export OARS_LAB_DIR = $(CURDIR)/.lab
lab-and-api: lab-build
	$(BIN)/python tests/twice.py tests/lab -p lab.fixtures
	$(BIN)/python tests/twice.py tests/api -p lab.fixtures

bench: setup ## speed against what the engines' users have today; writes bench/results/*.json
	$(BIN)/python -m bench

docs: setup ## what is made from the program: reference/spec.md, benchmarks.md, the Helm chart
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/helm/oars/generate.py

clean: ## remove what setup made
	@[ ! -d .lab ] || OARS_LAB_DIR=$(CURDIR)/.lab $(BIN)/python -m lab down
	rm -rf .lab .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
