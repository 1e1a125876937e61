# Everything a person or a machine does to this tree. `make` alone prints this list.
# A fresh machine needs python3.11, make and the package index; nothing else is taken from it.

PYTHON  ?= python3.11
UV      := .tools/bin/uv
UV_PIN  := uv==0.13.8
BIN     := .venv/bin
PY      := $(BIN)/python

# The stamp ties the environment to what it was made from; a changed lock makes it anew.
STAMP   := .venv/.made

export PYTHONDONTWRITEBYTECODE ?=
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# Forks of a process that holds gRPC threads warn and can hang (docs/dependencies.md, grpcio).
export GRPC_ENABLE_FORK_SUPPORT := 0

.DEFAULT_GOAL := help
.PHONY: help
help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

.PHONY: env
env: $(STAMP) ## the Python environment in .venv, exactly as uv.lock says

$(UV): Makefile
	@$(PYTHON) -c 'import sys; assert sys.version_info[:2] == (3, 11), sys.version' || \
		{ echo "Windlass needs Python 3.11; name it with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check $(UV_PIN)
	@touch $@

$(STAMP): $(UV) pyproject.toml uv.lock
	$(UV) sync --quiet --frozen --all-extras --python $(PYTHON)
	@touch $@

.PHONY: demo
demo: env ## a worked example on a stack of its own, which is gone afterwards
	@$(BIN)/windlass demo

.PHONY: up
up: env ## the whole stack, kept in .windlass/, until Ctrl-C
	@exec $(BIN)/windlass up
