# make demo    see it work: a cluster, a killed master, nothing lost, in a minute or two
# make test    everything that can be checked on this machine
# make lint    style and types only
# make nightly what has no time in .ci/run, for a whole night: docs/testing.md
# make bench   most figures of docs/figures.md
# make dist    wheels and source archives of both distributions, into dist/
# make site    docs/ as a site, into build/site; a link that leads nowhere ends it
# make wheels  wheels of the compiled core for x86-64 and aarch64, into dist/ (needs rustup)
# make lock    write the lock files again, after a change of dependencies (needs uv)

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
JOBS ?= 3

# Tests start some thousand processes. Without kept bytecode each of them compiles what it imports: half of its start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint nightly bench dist site lock env core wheels clean

help:
	@sed -n 's/^# //p' Makefile

demo: $(VENV)/.core
	@$(BIN)/python -m gantry_operator.platforms.local.demo

test: $(VENV)/.dev
	@JOBS=$(JOBS) $(BIN)/python .ci/checks.py

lint: $(VENV)/.dev
	@$(BIN)/python .ci/checks.py --lint

nightly: $(VENV)/.dev
	@$(BIN)/python .ci/nightly.py

bench: $(VENV)/.dev
	@$(BIN)/python .ci/bench.py

dist: $(VENV)/.dev
	@$(BIN)/python -m distributions.build

site: $(VENV)/.dev
	@$(BIN)/python -m distributions.site

lock:
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(or $(PYTHON),python3) requirements/lock.py

env: $(VENV)/.dev

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info $(CORE)/target $(CORE)/*.so

# The environment: first what a plain install has, then what tests need. Every file is checked against its hash.

CORE := broker_image/gantry_core

# The compiled core, where there is a Rust toolchain; else one line says that the Python body runs.
core: $(VENV)/.core

# Zig links for old C libraries of both machines.
wheels: $(VENV)/.base
	@test -x build/wheels/bin/maturin || { $(BIN)/python -m venv build/wheels && \
		build/wheels/bin/python -m pip --disable-pip-version-check -q install maturin==1.16.0 ziglang==0.17.1; }
	@for machine in x86_64 aarch64; do rustup -q target add $$machine-unknown-linux-gnu && \
		PATH="$(CURDIR)/build/wheels/bin:$$PATH" maturin build -q --release --locked --zig --manifest-path $(CORE)/Cargo.toml \
		--target $$machine-unknown-linux-gnu --out dist || exit 1; done
	@ls dist/gantry_core_native-*

$(VENV)/.core: $(VENV)/.base $(wildcard $(CORE)/src/*.rs) $(CORE)/Cargo.toml $(CORE)/Cargo.lock
	@$(BIN)/python $(CORE)/build.py
	@touch $@

$(VENV)/.base: requirements/base.txt pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: Python 3.11 or newer is needed and was not found; install it, or say where: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@if [ ! -x $(BIN)/python ] && ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "error: $(PYTHON) lacks the venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; fi
	@test -x $(BIN)/python || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing requirements/base.txt"
	@$(PIP) install --quiet --require-hashes -r requirements/base.txt
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements/dev.txt | $(VENV)/.core
	@echo "installing requirements/dev.txt (PySpark is large: a minute or two)"
	@$(PIP) install --quiet --require-hashes --no-build-isolation -r requirements/dev.txt
	@touch $@
