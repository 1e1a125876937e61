# All tasks of people and machines in this tree. `make` alone lists them.
# A fresh machine needs only python3.11, make and access to the package index.

PYTHON  ?= python3.11
UV_PIN  := 0.13.8
# The version is in the path, so another version is another folder and nothing has to be compared.
TOOLS   := .tools/uv-$(UV_PIN)
UV      := $(TOOLS)/bin/uv
BIN     := .venv/bin
PY      := $(BIN)/python
# The time of this file says when the environment was made. It is made anew when the lock has changed.
STAMP   := .venv/.made
CODE    := services client/windlass deploy tests $(wildcard benchmarks) examples/workflows protos/generate.py
# Tests run in two processes, for the two cores of the machine that builds; tests/conftest.py says which tests share one.
# The slowest tests come first (tests/chaos). Tests marked long run alone, because they measure failovers.
WORKERS ?= 2
PYTEST  := $(PY) -m pytest -q
SPREAD  := -n $(WORKERS) --no-loadscope-reorder
# The pure rules; tests cover all their branches.
CORES   := $(wildcard services/*/core) services/chassis/lease client/windlass/definition
# Images of the contracts: those that landed last (committed), and those of this tree.
LANDED  := protos/landed.binpb
PRESENT := .cache/present.binpb

export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# A fork of a process with gRPC threads warns and can hang (docs/dependencies.md, grpcio).
export GRPC_ENABLE_FORK_SUPPORT := 0
# Compiled modules are kept, or each process that a test starts would take twice the CPU for its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo up test test-long cover bench lint format protos protos-land clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

env: $(STAMP) ## make the Python environment in .venv, exactly as uv.lock says

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "Windlass needs Python 3.11; name yours: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_PIN)

$(STAMP): $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --all-extras --python $(PYTHON)
	@touch $@

demo: env ## run an example on a stack of its own, which is removed afterwards
	@$(BIN)/windlass demo

up: env ## run the whole stack until Ctrl-C; its state is in .windlass/
	@exec $(BIN)/windlass up

test: lint cover ## run lint, the unit tests with coverage, and all other tests that are not marked long
	$(PYTEST) $(SPREAD) --ignore=tests/unit

test-long: test ## run the same, then the tests marked long: hundreds of kills, failover times, grpcurl, Jaeger, Go
	$(PYTEST) -m long

cover: env ## run the unit tests; they must cover all branches of the pure rules
	$(PYTEST) $(SPREAD) tests/unit $(CORES:%=--cov=%) --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

bench: env ## print one JSON line per workload and peer; see benchmarks/README.md
	$(PY) -m benchmarks

lint: env ## check style, types, layers and contracts
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

format: env ## format Python and protos as lint expects
	$(BIN)/ruff check --quiet --select I --fix $(CODE)
	$(BIN)/ruff format --quiet $(CODE)
	$(BIN)/buf format protos --path protos/windlass --write

protos: env ## generate protos/gen anew from the .proto files
	$(PY) protos/generate.py

protos-land: protos $(PRESENT) ## record the contracts as landed; later changes must stay compatible with them
	@if test -f $(LANDED); then $(BIN)/buf breaking $(PRESENT) --against $(LANDED) --exclude-imports; fi
	cp $(PRESENT) $(LANDED)

.PHONY: $(PRESENT)
$(PRESENT): env
	@mkdir -p $(@D)
	$(BIN)/buf build --path protos/windlass --exclude-source-info -o $@

clean: ## remove everything that was built, but not the data in .windlass/
	rm -rf .venv .tools .cache dist build .coverage htmlcov .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
