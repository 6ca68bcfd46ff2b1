# The two commands of gpugrade: `make demo` and `make test`. Both do all their set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WANTS := $(shell cksum < pyproject.toml | cut -d' ' -f1)

.PHONY: help demo test lint proto proto-check bench clean

help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.base-$(WANTS):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpugrade needs Python 3.11 or newer; $(PYTHON) is older. Say which: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[probe]'
	@touch $@

$(VENV)/.test-$(WANTS): $(VENV)/.base-$(WANTS)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[probe,test]'
	@touch $@

$(VENV)/.lint-$(WANTS): $(VENV)/.test-$(WANTS)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[probe,test,lint]'
	@touch $@

demo: $(VENV)/.base-$(WANTS) ## Show the whole story on an emulated fleet; ONCE=1 leaves at the end
	$(BIN)/python -m tools.demo $(if $(ONCE),--once)

test: $(VENV)/.test-$(WANTS) ## Run every test that this machine can
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.lint-$(WANTS) ## Style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy scorer chaos_probe tools tests
	$(BIN)/lint-imports

proto: ## Generate the code of the contracts
	tools/proto.sh

proto-check: ## Fail if the generated code is not fresh
	tools/proto.sh --check

bench: $(VENV)/.test-$(WANTS) ## Latency of the extender beside a reference, same run
	$(BIN)/python -m tools.bench $(BENCH_ARGS)

clean: ## Remove what was built here
	rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
