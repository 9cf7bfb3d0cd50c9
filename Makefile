# Needs Python 3.11 or newer, make, and access to the package registries.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN := .venv/bin
# Extra pytest options. `make test-all` sets it to include the tests marked `long`.
SELECT ?=
# A failed test runs once more, at most five of a suite. The report shows what failed; RERUNS= turns this off.
RERUNS ?= --reruns 1 --max-suite-reruns 5 --rerun-show-tracebacks
# Suites run in parallel, so each has its own cache directory: $(call pytest,SUITE,OPTIONS)
pytest = $(BIN)/python -m pytest tests/$(1) -o cache_dir=.pytest_cache/$(1) $(SELECT) $(RERUNS) $(2)

.DEFAULT_GOAL := help
.PHONY: help setup chromium screenshots demo test test-all check unit simulation envs contract live lab lab-build lab-test api e2e lab-and-api bench docs site clean

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
	$(BIN)/ruff format --check src tests bench examples lab docs
	$(BIN)/ruff check src tests bench examples lab docs
	$(BIN)/mypy src tests bench lab docs
	$(BIN)/lint-imports --no-cache

unit: export OARS_FUZZ ?= 2000
unit: setup ## unit tests
	$(call pytest,unit)

simulation: export OARS_SEEDS ?= 1000
simulation: setup ## simulated histories of users and faults against the real operator and clients
	$(call pytest,simulation,--reruns 0)

envs: setup ## build the engine environments that the tests need and .venv does not contain
	$(BIN)/oars env build --engine mars
	$(BIN)/oars env build --engine mars --set mars.distribution=pymars

contract: envs ## run the contracts of oars.testing against each engine and each place
	$(call pytest,contract)

# The screenshots of the documentation need a browser.
chromium: setup
	@command -v chromium >/dev/null || $(BIN)/python -m lab packages chromium fonts-dejavu-core || \
	  echo "chromium is missing: install it, or the test of the screenshots is skipped" >&2

screenshots: setup chromium ## take the pictures of the documentation
	$(BIN)/python docs/screenshots.py

recordings: setup ## record the terminal sessions of the documentation
	$(BIN)/python docs/recordings.py

live: envs chromium ## tests with real engine processes on this machine
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

# Three series run in parallel. Building Kubernetes takes longest, so it starts first, and the tests with real pods follow
# at once. Lint, types, unit tests and simulation run beside it, then lab-and-api on a Kubernetes of its own, because
# the API tests stop theirs at times. The contract and live tests, which need no Kubernetes, run in the foreground. The
# output of the others is in .lab-test*.log and is printed at the end. A failure stops nothing: all results are shown.
SERIES = $(MAKE) --no-print-directory --keep-going

test: setup ## set up and run all tests except those marked `long`
	@$(SERIES) lab-build e2e > .lab-test-pods.log 2>&1 & pods=$$!; \
	$(SERIES) chromium check unit simulation lab-and-api > .lab-test.log 2>&1 & others=$$!; \
	$(SERIES) contract live; local=$$?; \
	echo "waiting for the lint, unit and Kubernetes tests (.lab-test*.log)"; \
	wait $$others; others=$$?; wait $$pods; pods=$$?; cat .lab-test.log .lab-test-pods.log; \
	[ $$local -eq 0 ] && [ $$others -eq 0 ] && [ $$pods -eq 0 ]

test-all: ## the same with the tests marked `long`, which repeat at length what others cover
	$(MAKE) --no-print-directory test SELECT='-m "long or not long"' OARS_SEEDS=10000 OARS_FUZZ=100000

lab-and-api: export OARS_LAB_DIR = $(CURDIR)/.lab
lab-and-api: lab-build
	$(call pytest,lab,-p lab.fixtures); lab=$$?; $(call pytest,api,-p lab.fixtures) && [ $$lab -eq 0 ]

bench: setup ## measure performance against the engines' own tools; writes bench/results/*.json
	$(BIN)/python -m bench

docs: setup ## generate the pages that are made from the program and the Helm chart, and build the site (build/site)
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/helm/oars/generate.py
	$(MAKE) --no-print-directory site

site: export NO_MKDOCS_2_WARNING = 1
site: setup ## build the documentation site into build/site; a broken link is an error
	$(BIN)/mkdocs build --quiet

clean: ## remove everything that make created in this directory
	@[ ! -d .lab ] || OARS_LAB_DIR=$(CURDIR)/.lab $(BIN)/python -m lab down
	rm -rf .lab .lab-test*.log .venv build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
