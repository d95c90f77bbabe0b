# The commands of this project. `make demo` and `make test` need python3 (3.10 to 3.12) with
# pip and venv, and g++; everything else is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c tools/constraints.txt
# Directories are among them, so that a file that is added or removed counts too.
NATIVE := qwen3_a8w8/kernels/cpu/CMakeLists.txt $(shell find qwen3_a8w8/kernels/cpu/csrc)
# An editable install knows the modules that there were: another set of them is installed again.
MODULES := $(VENV)/.modules-$(shell find qwen3_a8w8 deployments -name '*.py' | sort | cksum | cut -d ' ' -f 1)
INPUTS := pyproject.toml tools/constraints.txt $(NATIVE) $(MODULES)

.PHONY: install demo check test clients bench format clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python tools/demo.py

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

# The clients of other projects, each in an environment of its own that is made the first time;
# `make test` runs those that are there.
clients: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m clients --make-clients

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/qwen3-a8w8 bench kernels --model qwen3-0.6b
	$(BIN)/qwen3-a8w8 bench engine --model demo

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' \
	  || { echo "python3 3.10 to 3.12 is needed; set PYTHON=/path/to/one" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(MODULES): | $(BIN)/python
	rm -f $(VENV)/.modules-*
	touch $@

# torch first and alone: once installed, no other package's requirement can replace it.
$(VENV)/.torch: tools/constraints.txt | $(BIN)/python
	@echo "Installing torch into $(VENV), then Ray and the rest; some minutes the first time."
	$(PIP) torch
	touch $@

# The demo's client is part of the plain install, so that `make demo` installs nothing twice.
$(VENV)/.installed: $(INPUTS) $(VENV)/.torch
	@echo "Installing the other packages, and compiling the kernels at the end."
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[demo,test,lint]'
	touch $@
