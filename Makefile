# `make train` runs the default recipe, `make test` lint, types and tests, `make bench` the speed beside other libraries,
# `make gsm8k` GSM8K with SmolLM2-135M from nothing to the table, `make gsm8k-qwen` with half a billion parameters (hours; the
# same command continues, ARGS="--minutes 60" limits a session),
# `make coverage` the tests with a report of untested lines, `make docs` draws docs/architecture.svg, `make dev` adds the
# Git hooks.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Waiting threads sleep soon, so that a busy machine does not slow training down tenfold (see lmgym/models/openmp.py).
export GOMP_SPINCOUNT ?= 2000
export KMP_BLOCKTIME ?= 1

.PHONY: train test coverage bench gsm8k gsm8k-qwen docs lint types install dev clean

train: $(VENV)/.installed
	$(BIN)/lmgym train $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.speed $(ARGS)

gsm8k: $(VENV)/.installed
	$(BIN)/python -m benchmarks.gsm8k $(ARGS)

gsm8k-qwen: $(VENV)/.installed
	$(BIN)/python -m benchmarks.gsm8k --recipe qwen $(ARGS)

# Two at a time, a file each: the one that makes a clean machine installs while the others compute. Each computes in one
# thread, because two processes of two threads on two cores wait for each other most of the time.
test: lint types
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m ""

# Without the slow tests and those that need the package index. Writes a summary and coverage.xml.
coverage: $(VENV)/.tested
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not network" --cov --cov-report=term --cov-report=xml

docs: $(VENV)/.installed
	$(BIN)/python docs/draw_architecture.py

lint: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.tested
	$(BIN)/mypy

install: $(VENV)/.installed

dev: $(VENV)/.tested
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pre-commit install

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot]'
	touch $@

$(VENV)/.tested: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plot,lora,reasoning-gym,textarena,verifiers,openenv,tensorboard,wandb,trackio,baselines,lm-eval,test]'
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage coverage.xml
