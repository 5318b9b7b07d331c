# make demo: set up, fetch SmolLM2, answer eight chats at once.   make test: set up, lint, type-check, test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-nightly lint bench clean

demo: $(READY)
	$(BIN)/quire pull smollm2
	$(BIN)/python examples/demo.py

test: $(READY) lint
	$(BIN)/python -m pytest -m "not nightly" -q

test-nightly: $(READY)
	$(BIN)/python -m pytest -q --hypothesis-profile=nightly --timeout=7200

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
