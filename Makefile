# `make train` runs the default recipe, `make test` lint, types and tests, `make bench` the speed beside other libraries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Waiting threads sleep soon, so that a busy machine does not slow training down tenfold (see lmgym/models/openmp.py).
export GOMP_SPINCOUNT ?= 1000
export KMP_BLOCKTIME ?= 1

.PHONY: train test bench lint types install clean

train: $(VENV)/.installed
	$(BIN)/lmgym train $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.speed $(ARGS)

# Two at a time, a file each: the one that makes a clean machine installs while the others compute.
test: lint types
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow or not slow"

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot]'
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot,lora,math,tensorboard,wandb,trackio,peers,test]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
