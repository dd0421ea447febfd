# `make train` and `make test` do everything on a fresh machine: environment, installation, then the work.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup train test lint format types test-thorough test-gpu test-chaos test-stress test-tpu-compile bench clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stratagem-installed

# The versions that the suite is run with. torch is named exactly, and to pip: where a CPU build lies on the
# machine pip takes it, while a range would fetch a CUDA build of several GB.
PINS := torch==2.13.0 keras==3.15.1 jax==0.10.2
ifeq ($(shell uname -sm),Linux x86_64)
PINS += tensorflow-cpu==2.21.0 libtpu==0.0.42.1
endif

help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(STAMP) ## make .venv and install everything into it (once)

$(STAMP): pyproject.toml Makefile
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PINS) -e '.[torch,jax,tf,examples,dev]'
	@touch $@

train: setup ## run the main job: MobileNetV2 on photos of solar cells, 2 replicas on CPU
	$(BIN)/stratagem run --cpu-devices 2 examples/solar_cells.py

test: lint types ## lint, types and the whole suite: what CI runs
	$(BIN)/python -m pytest
	KERAS_BACKEND=jax $(BIN)/python -m pytest tests/on_jax

lint: setup ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## pyright
	$(BIN)/pyright

test-thorough: setup ## rows of the large tables that the suite leaves out (half an hour)
	$(BIN)/python -m pytest -m thorough

test-gpu: setup ## the tests that need CUDA devices
	$(BIN)/python -m pytest -m gpu

test-chaos: setup ## the tests that kill and freeze processes, in every way and place (half an hour)
	$(BIN)/python -m pytest -m "chaos or chaos_matrix"

test-tpu-compile: setup ## compile MobileNetV2 for two TPU slices that are not there: minutes each
	$(BIN)/python -m pytest -m tpu_compile

test-stress: setup ## 2, 4 and 8 jax devices on a busy machine, ten times over (half an hour)
	$(BIN)/python -m pytest -m stress

bench: setup ## the speed ratios of benchmarks/README.md
	$(BIN)/python benchmarks/step_time.py --model mobilenet96
	$(BIN)/python benchmarks/step_time.py --model mlp
	$(BIN)/python benchmarks/step_time.py --model mobilenet224 --only a b c e
	$(BIN)/python benchmarks/all_reduce.py
	$(BIN)/python benchmarks/all_reduce.py --transport process_group
	$(BIN)/python benchmarks/two_workers.py
	for engine in jax torch; do for file in empty_step input_pipeline; do \
	    KERAS_BACKEND=$$engine STRATAGEM_CPU_DEVICES=2 OMP_NUM_THREADS=1 $(BIN)/python benchmarks/$$file.py || exit 1; done; done
	$(BIN)/python benchmarks/step_time_jax.py --model mlp
	$(BIN)/python benchmarks/step_time_jax.py --model transformer
	$(BIN)/python benchmarks/step_time_jax.py --model mobilenet96 --only p s2 tp t2 --starts 1

clean: ## remove .venv and what tools left
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
