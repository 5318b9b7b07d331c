# make serve: set up, fetch SmolLM2, serve it with its page on http://127.0.0.1:8000 (ARGS="..." for more flags).
# make demo: the same set-up, then eight chats answered at once, offline.   make test: set up, lint, type-check, test.
# make bench: set up, then quire and its peers, more than 90 minutes with nothing else running (ARGS="--quick --rounds 1" to see it run).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two processes share the test files: most tests wait more than they compute.
SIDE_BY_SIDE := -n 2 --dist loadfile
# The security tests, and the servers they start, without asserts. pytest turns those of tests into ifs, and warns.
OPTIMIZED := PYTHONOPTIMIZE=1 $(BIN)/python -m pytest -q tests/server/security -W ignore::pytest.PytestConfigWarning

# Instruction sets for tests alone (CMakeLists.txt). One with AMX takes half a minute to build: `make sanitize` has it.
EMULATED := tiles,avx_vnni

# A copy of the package with its kernels under sanitizers. -S keeps the editable install's finder out of the way.
SANITIZERS := address,undefined
FOR_RACES := $(filter thread,$(SANITIZERS))
SANITIZED := build/$(if $(FOR_RACES),races,sanitize)
SITE_PACKAGES = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
RUNTIMES = $(foreach lib,$(if $(FOR_RACES),tsan,asan ubsan) stdc++,$(shell $(CXX) -print-file-name=lib$(lib).so))
UNDER_SANITIZERS = LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
	PYTHONPATH=$(SANITIZED)/site:$(SITE_PACKAGES)
SANITIZED_TESTS := $(addprefix sanitize-,tests/kernels tests/attention tests/quantization/test_few_bits.py)

# The sanitizer of threads wants its addresses where they always are, has a thread of its own, and none in a forked child.
UNDER_SANITIZER_OF_THREADS = setarch -R
NOT_FOR_RACES := --deselect tests/kernels/test_team.py

.PHONY: serve chromium demo test test-nightly sanitize races $(SANITIZED_TESTS) lint bench clean

serve: $(READY)
	$(BIN)/quire serve smollm2 $(ARGS)

demo: $(READY)
	$(BIN)/quire pull smollm2
	$(BIN)/python examples/demo.py

bench: $(READY)
	$(BIN)/python -m benchmarks.peers --all $(ARGS)

test: $(READY) lint chromium
	EXPECTED_SETS=$(EMULATED) $(BIN)/python -m pytest -m "not nightly" -q $(SIDE_BY_SIDE)

test-nightly: $(READY) chromium
	$(BIN)/python -m pytest -q --hypothesis-profile=nightly --timeout=7200
	$(OPTIMIZED)

# Tests of the native kernels with every access to memory checked (g++ or another compiler with its runtimes beside it).
sanitize: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(SANITIZED)/site \
		-C build-dir=$(SANITIZED)/cmake -C cmake.build-type=RelWithDebInfo -C cmake.define.QUIRE_SANITIZE=$(SANITIZERS) \
		-C cmake.define.QUIRE_EMULATE=$(EMULATED),amx .
	$(MAKE) -j2 --output-sync=line $(SANITIZED_TESTS)

$(SANITIZED_TESTS): sanitize-%:
	$(UNDER_SANITIZERS) $(if $(FOR_RACES),$(UNDER_SANITIZER_OF_THREADS)) $(BIN)/python -S -m pytest -q --capture=sys $(if $(FOR_RACES),$(NOT_FOR_RACES)) $*

# The same tests, looking for memory that two threads use without having met in between.
races:
	$(MAKE) sanitize SANITIZERS=thread

# For the tests of the page in a real browser.
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || echo "No Chromium: the browser tests are skipped; install the package chromium."

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# An editable install does not build the kernels again by itself; what is in build/ is kept but for what changed. Nor is it compiled, as
# packages are, where Python may not write what it compiles: a start takes a quarter longer so.
$(READY): pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/* csrc/*/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -C cmake.define.QUIRE_EMULATE=$(EMULATED) -e '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
