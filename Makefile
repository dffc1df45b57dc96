# The entry points: make run, make test, make check, make bench. Each sets up what it needs.
#   make run PROMPT="Why is the sky blue?"     MODEL=gemma3:270m for another model
#   make test                                  FULL=1 for the long forms
#   make bench                                 CONTINUE=1 for the rest of one that was ended
PYTHON ?= python3
MODEL ?= smollm2:135m
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := $(shell find native/src native/include native/binding native/CMakeLists.txt -type f)
export CMAKE_BUILD_PARALLEL_LEVEL ?= 2
# Taken literally: a dollar sign or a quote in the prompt stays what it is.
export LOCALLLM_PROMPT := $(value PROMPT)

.PHONY: run test check bench clean

# The prompt is looked at before anything is built, and the recursion keeps that order under -j.
run:
	@if [ -z "$$LOCALLLM_PROMPT" ]; then \
	    echo 'error: make run needs a prompt'; echo; \
	    echo 'hint: make run PROMPT="Why is the sky blue?"'; exit 2; fi
	@$(MAKE) --no-print-directory -s $(VENV)/.installed
	@$(BIN)/localllm run "$(MODEL)" -- "$$LOCALLLM_PROMPT" </dev/null

test: $(VENV)/.test-installed $(VENV)/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/run_tests.py

check: $(VENV)/.check-installed $(VENV)/.installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/run_checks.py

bench: $(VENV)/.test-installed $(VENV)/.installed
	@$(BIN)/python -m benchmarks $(if $(CONTINUE),--continue,--plots benchmarks/results/plots)

clean:
	rm -rf build .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo 'error: Python 3.10 or newer is needed'; echo; \
	    echo 'hint: make PYTHON=python3.12 ...'; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' \
	    2>/dev/null || { echo 'error: Python.h, which the engine is built with, is missing'; echo; \
	    echo 'hint: on Debian and Ubuntu: apt install python3-dev python3-venv gcc'; exit 1; }
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo; echo 'hint: on Debian and Ubuntu: apt install python3-venv'; exit 1; }
	@$(PIP) install -qq --upgrade pip  # an older one shows no progress that a program can read
	@touch $@

# Editable, so that only a change of the native part needs a new build.
$(VENV)/.installed: $(VENV)/.created pyproject.toml $(NATIVE)
	@echo 'Building and installing localllm (about a minute the first time)'
	@$(PIP) install -qq 'scikit-build-core>=1.0' 'cffi>=1.17' 'cmake>=3.25' 'ninja>=1.11'
	@$(PIP) install -qq --no-build-isolation -e .
	@touch $@

$(VENV)/.test-installed: pyproject.toml | $(VENV)/.installed
	@$(BIN)/python scripts/install_extra.py test bench
	@touch $@

$(VENV)/.check-installed: pyproject.toml | $(VENV)/.installed
	@$(BIN)/python scripts/install_extra.py dev
	@touch $@
