# `make demo` and `make test` need python3 >= 3.11 and make; everything else goes into .venv, which is kept for the next time.
# Both use the package as it is installed from a wheel, not the checkout.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' >/dev/null 2>&1 && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
# On Linux mlx needs a backend; `make demo EXTRA=cuda13` takes the one for NVIDIA GPUs.
EXTRA ?= $(if $(filter Linux,$(shell uname -s)),cpu)
# Test files side by side; `make test JOBS=0 ARGS="-x tests/test_cli.py"` runs one after another.
JOBS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
SOURCES := pyproject.toml README.md LICENSE $(shell find daemon config launchd -type f ! -name '*.pyc' ! -name '.*' 2>/dev/null | sed 's/ /\\ /g')

.PHONY: help demo test lint typecheck contract check ui-shot dist clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       set up and run the whole path on the bundled samples"
	@echo "make test       set up and run the test suite against the installed package"
	@echo "make check      test, lint, typecheck and contract: what CI runs"
	@echo "make ui-shot    dropscribe ui in a real browser, with pictures (skipped where there is none)"
	@echo "make dist       the wheel and the source archive, in dist/"
	@echo "make clean      remove .venv and what the tools left"

demo: $(VENV)/.installed
	@echo "==> Running the demo: dropscribe demo"
	@$(BIN)/dropscribe demo

test: $(VENV)/.installed $(VENV)/.tools
	@echo "==> Running the tests against the installed package"
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/.tools
	@echo "==> Checking style: ruff check, ruff format --check"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

typecheck: $(VENV)/.installed $(VENV)/.tools
	@echo "==> Checking types: mypy"
	@$(BIN)/mypy

contract: $(VENV)/.installed $(VENV)/.tools
	@echo "==> Checking that imports run one way: lint-imports"
	@$(BIN)/lint-imports

check: test lint typecheck contract

ui-shot: $(VENV)/.installed $(VENV)/.tools
	@echo "==> Looking at dropscribe ui with a headless browser: pictures in ui-shots/"
	@$(BIN)/python tools/ui_shot.py

dist: $(VENV)/.tools
	@$(BIN)/python -m build

clean:
	rm -rf $(VENV) dist build ui-shots .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# --- set-up -------------------------------------------------------------------------------------------------------

$(VENV)/.made: constraints.txt
	@test -n "$(PYTHON)" || { echo "dropscribe needs Python 3.11 to 3.14, and none was found. \
	Found: $$(python3 --version 2>&1 || echo 'no python3'). Install one, or name it: make demo PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "==> Making $(VENV) with $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade --constraint constraints.txt pip
	@touch $@

$(VENV)/.dependencies: $(VENV)/.made pyproject.toml constraints.txt
	@echo "==> Installing dropscribe and its dependencies (about 650 MB on disk; takes a minute or two)"
	@$(PIP) install --quiet --constraint constraints.txt --build-constraint constraints.txt "$(if $(EXTRA),.[$(EXTRA)],.)"
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	@echo "==> Installing dropscribe from a wheel built from this checkout"
	@$(PIP) install --quiet --build-constraint constraints.txt --force-reinstall --no-deps .
	@touch $@

$(VENV)/.tools: $(VENV)/.made pyproject.toml constraints.txt
	@echo "==> Installing the development tools"
	@$(PIP) install --quiet --constraint constraints.txt --group dev
	@touch $@
