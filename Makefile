# Each target sets up what it needs: a virtual environment in .venv with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The folder beside the checkout, where there is one, else the user's own choice.
ifneq ($(wildcard ../shared/data),)
export CONCEPTORS_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo tour test test-gpu test-frameworks browser soak lint types docs bench release release-check lock \
	sbom clean

# Only what requirements*.txt list, only wheels (a source archive would fetch and run more), only
# files with the hashes given there.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
HASHED := $(INSTALL) --require-hashes --only-binary :all:

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(READY): pyproject.toml requirements.txt requirements-torch-cpu.txt requirements-torch.txt
	@echo "Setting up $(VENV) (once, a few minutes) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(HASHED) -r requirements.txt
	@echo "Installing torch: its small build without CUDA where pip finds it, else as published ..."
	@$(HASHED) -r requirements-torch-cpu.txt 2>/dev/null || $(HASHED) -r requirements-torch.txt
	$(INSTALL) --no-build-isolation -e .
	$(BIN)/python -m pip check --disable-pip-version-check
	@touch $@

demo: $(READY) ## MNIST digits 0-4, then 5-9: plain training, Shield(model), and a closed-form readout
	@$(BIN)/conceptors run disjoint-mnist --method sgd --method shield --method readout \
		--set epochs=2 --device cpu --out out/demo
	@$(BIN)/conceptors report out/demo
	@echo "Open out/demo/index.html in a browser. The paper's experiment is one command, too:"
	@echo "  $(BIN)/conceptors run disjoint-mnist --method cab --preset paper --out out/paper"

tour: $(READY) ## the algebra and incremental regression at work on small digits
	$(BIN)/python examples/tour.py

test: $(READY) browser ## all tests and doctests, two processes at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-gpu: ## contract, protection, graphs and precision on a CUDA machine (PYTHON=python3 has the torch to use)
	@$(PYTHON) -c 'import torch, sys; print(torch.__version__, torch.cuda.get_device_name())'
	@git log -1 --format='commit %H' 2>/dev/null || true
	PYTHONPATH=src $(PYTHON) -m pytest -q -o addopts= -p no:cacheprovider \
		tests/gpu \
		tests/internal/test_precision.py

test-frameworks: ## tests with transformers, accelerate, peft, lightning and Avalanche, in .venv-frameworks
	@$(MAKE) --no-print-directory VENV=.venv-frameworks .venv-frameworks/.frameworks
	OMP_NUM_THREADS=1 .venv-frameworks/bin/python -m pytest -q tests/integrations $(wildcard tests/models)

$(VENV)/.frameworks: $(READY) requirements-frameworks.txt
	$(HASHED) -r requirements-frameworks.txt
	@touch $@

browser: ## Debian's chromium for the tests of the page; asks before installing it, unless CI is set
	@for name in "$$CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable chrome; do \
		[ -n "$$name" ] && command -v "$$name" >/dev/null 2>&1 && exit 0; \
	done; \
	skipped="No chromium: the tests of the page in a browser will be skipped."; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then echo "$$skipped"; exit 0; fi; \
	if [ -z "$$CI" ]; then \
		if [ -t 0 ]; then \
			printf "Install chromium for the tests of the page (apt-get install chromium)? [y/N] "; \
			read -r answer; \
		fi; \
		case "$$answer" in \
			[yY]*) ;; \
			*) echo "$$skipped To have them: apt-get install chromium, or CI=1 make test"; exit 0 ;; \
		esac; \
	fi; \
	echo "Installing chromium for the tests of the page ..."; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ timeout 120 apt-get update -qq && \
		timeout 600 apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "$$skipped"

soak: $(READY) ## thousands of drawn scenarios against the shield's promise (SEEDS=2000 START=0)
	OMP_NUM_THREADS=1 $(BIN)/python tests/promises/soak.py --seeds $(or $(SEEDS),2000) --start $(or $(START),0)

lint: $(READY) ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## static types, strict
	$(BIN)/mypy

docs: $(READY) ## the documentation as HTML in build/docs; any broken link fails
	$(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs
	@echo "Open build/docs/index.html"

bench: $(READY) ## what a shield costs on this machine
	$(BIN)/python -m benchmarks.cost --out out/cost.csv

release-check: $(READY) ## build wheel and sdist, install them beside torch and numpy alone, run the quickstart there
	$(BIN)/python tools/release_check.py

release: $(READY) ## wheel and sdist in dist; RELEASING.md says what comes before and after
	$(BIN)/python -m hatchling build -c -t sdist -t wheel -d dist

lock: ## requirements.txt anew from constraints.txt: hashes of everything that is installed
	$(PYTHON) tools/lock.py

sbom: $(READY) ## what is installed, as a software bill of materials (CycloneDX) in build/sbom.json
	@mkdir -p build
	$(BIN)/python tools/sbom.py build/sbom.json
	@echo "Wrote build/sbom.json"

clean: ## remove everything that was built
	rm -rf $(VENV) .venv-frameworks build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
