# Everything a person or a machine does to this tree. `make` alone prints this list.
# A fresh machine needs python3.11, make and the package index; nothing else is taken from it.

PYTHON  ?= python3.11
UV_PIN  := 0.13.8
# The pin is in the path, so that another pin is another folder and nothing has to be compared.
TOOLS   := .tools/uv-$(UV_PIN)
UV      := $(TOOLS)/bin/uv
BIN     := .venv/bin
PY      := $(BIN)/python
# What the environment was made from; a changed lock makes it anew.
STAMP   := .venv/.made
CODE    := services client/windlass deploy tests $(wildcard benchmarks) protos/generate.py
# Tests run in as many processes as the machine that builds has cores; tests/conftest.py says which share one.
# What takes longest comes first (tests/chaos). What is marked long has the machine to itself: it measures failovers.
WORKERS ?= 2
PYTEST  := $(PY) -m pytest -q
SPREAD  := -n $(WORKERS) --no-loadscope-reorder
# The pure rules, whose branches are all tested.
CORES   := $(wildcard services/*/core) services/chassis/lease client/windlass/definition
# Images of the contracts: as they landed last (committed), and as they are now.
LANDED  := protos/landed.binpb
PRESENT := .cache/present.binpb

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# Forks of a process that holds gRPC threads warn and can hang; docs/dependencies.md, grpcio.
export GRPC_ENABLE_FORK_SUPPORT := 0

.DEFAULT_GOAL := help
.PHONY: help env demo up test test-long cover bench lint format protos protos-land clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

env: $(STAMP) ## the Python environment in .venv, exactly as uv.lock says

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "Windlass needs Python 3.11; name yours: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_PIN)

$(STAMP): $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --all-extras --python $(PYTHON)
	@touch $@

demo: env ## a worked example on a stack of its own, which is gone afterwards
	@$(BIN)/windlass demo

up: env ## the whole stack, kept in .windlass/, until Ctrl-C
	@exec $(BIN)/windlass up

test: lint cover ## lint, the unit tests with the coverage they owe, then every other test that is not marked long
	$(PYTEST) $(SPREAD) --ignore=tests/unit

test-long: test ## the same, then what is marked long: hundreds of kills, failover times, grpcurl, Jaeger
	$(PYTEST) -m long

cover: env ## branch coverage of the pure rules by their unit tests, which is to be 100 %
	$(PYTEST) $(SPREAD) tests/unit $(CORES:%=--cov=%) --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

bench: env ## one JSON line per workload and peer; see benchmarks/README.md
	$(PY) -m benchmarks

lint: env ## style, types, layers, contracts
	$(BIN)/ruff check --quiet $(CODE)
	$(BIN)/ruff format --check --quiet $(CODE) || { echo "not formatted; run: make format" >&2; exit 1; }
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy --no-error-summary $(CODE)
	$(PY) protos/generate.py --check
	$(BIN)/buf lint protos
	$(BIN)/buf format protos --path protos/windlass --diff --exit-code
	@$(MAKE) --no-print-directory $(PRESENT)
	@test -f $(LANDED) || { echo "$(LANDED) is missing; without it nothing guards the contracts" >&2; exit 1; }
	$(BIN)/buf breaking $(PRESENT) --against $(LANDED) --exclude-imports

format: env ## lay out Python and protos as lint wants them
	$(BIN)/ruff check --quiet --select I --fix $(CODE)
	$(BIN)/ruff format --quiet $(CODE)
	$(BIN)/buf format protos --path protos/windlass --write

protos: env ## generate protos/gen anew from the .proto files
	$(PY) protos/generate.py

protos-land: protos $(PRESENT) ## record the contracts as landed: what later changes must stay compatible with
	@if test -f $(LANDED); then $(BIN)/buf breaking $(PRESENT) --against $(LANDED) --exclude-imports; fi
	cp $(PRESENT) $(LANDED)

.PHONY: $(PRESENT)
$(PRESENT): env
	@mkdir -p $(@D)
	$(BIN)/buf build --path protos/windlass --exclude-source-info -o $@

clean: ## remove what was built; .windlass/ (data) is left
	rm -rf .venv .tools .cache dist build .coverage htmlcov .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
