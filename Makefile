# Every target sets up what it needs, into .venv, once: a second call finds the stamp.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
# Two workers, since two cores are what one can count on.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test exact crash coverage soak lint types layers format clean

help:  ## Show this.
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/' | expand -t 18

# Without ensurepip (as on Debian without python3-venv), the pip that is there fills the new environment.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m pip --python $(BIN)/python install pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

demo: $(STAMP)  ## Train, kill, continue and compare, in about half a minute; writes demo/loss.png.
	$(BIN)/segue demo

test: $(STAMP)  ## Run the tests that take minutes, not hours.
	$(PYTEST) -n $(WORKERS) -m 'not exact and not crash and not soak'

exact: $(STAMP)  ## Run the full exactness matrix.
	$(PYTEST) -n $(WORKERS) -m 'not soak' tests/exactness tests/quantized_state tests/adapters tests/examples
	$(PYTEST) -n $(WORKERS) -m 'exact and not soak' tests/cases tests/_session tests/_capture

crash: $(STAMP)  ## Run the full crash matrix.
	$(PYTEST) -n $(WORKERS) -m 'not soak' tests/crash tests/hostile

coverage: $(STAMP)  ## Show that records and windows are tested in every branch.
	$(PYTEST) -n $(WORKERS) -m 'not exact and not crash and not soak' --cov=src/segue/_record --cov=src/segue/_window \
		--cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 \
		tests/_record tests/_window tests/quant tests/_capture

soak: $(STAMP)  ## Run what takes longer than twenty minutes.
	$(PYTEST) -m soak --timeout 0

lint: $(STAMP)  ## Check style and format.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## Check types.
	$(BIN)/mypy

layers: $(STAMP)  ## Check who imports whom.
	$(BIN)/lint-imports

format: $(STAMP)  ## Format and repair what can be repaired.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove what the demo and the tools left; keeps .venv.
	rm -rf .coverage demo .mypy_cache .ruff_cache .import_linter_cache .hypothesis .pytest_cache build dist
