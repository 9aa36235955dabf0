# Each target sets up what it needs: a virtual environment in .venv with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The folder beside the checkout, where there is one, else the user's own choice.
ifneq ($(wildcard ../shared/data),)
export CONCEPTORS_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo test lint types docs bench clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once, a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## the algebra and incremental regression at work on real digits
	$(BIN)/python examples/demo.py

test: $(READY) ## all tests and doctests
	$(BIN)/python -m pytest -q

lint: $(READY) ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## static types, strict
	$(BIN)/mypy

docs: $(READY) ## the documentation as HTML in build/docs; any broken link fails
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs
	@echo "Open build/docs/index.html"

bench: $(READY) ## timings against older ways of computing the same
	$(BIN)/python -m pytest -q benchmarks --benchmark-enable --benchmark-only

clean: ## remove everything that was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
