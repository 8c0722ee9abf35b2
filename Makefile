# Every target makes its own environment in .venv: a Python of at least 3.11 on PATH and the package index are enough.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
JOBS  ?= 2
SHARD ?= 1/1

# The benchmarks' own environment, with the peers that can be installed. This torch is the one without CUDA libraries.
BENCH := .venv-bench
PEERS ?= torch==2.13.0 jax numba scipy

# A name on PATH may be a shim that starts nothing, and an interpreter may lack what `venv` needs, so each is asked.
PYTHON ?= $(shell for candidate in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { command -v "$$candidate"; break; }; done)

.PHONY: help demo test check golden bench bench-quick bench-compile docs fuzz trust lint clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python of at least 3.11 (with venv) on PATH; set PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making the environment $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

demo: $(READY)  ## compile and check the examples, and print a table
	$(BIN)/polyopt demo

test: lint  ## everything that CI runs: lint, types, layers, all tests, those of packages with coverage
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist worksteal --coverage-part measured
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report
	$(BIN)/pytest -n $(JOBS) --dist worksteal --coverage-part rest

lint: $(READY)  ## style, types and layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/mypy --num-workers $(JOBS)

check: $(READY)  ## before a commit: format, lint, layers, types and the quick tests
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	$(BIN)/lint-imports
	$(BIN)/mypy --num-workers $(JOBS)
	$(BIN)/pytest -q -n $(JOBS) -m 'not slow and not trust and not exhaustive and not cuda'

golden: $(READY)  ## rewrite the golden files; read the diff like code
	$(BIN)/pytest -q tests/golden tests/codegen_c/test_contraction_facts.py --update-golden

$(BENCH)/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python of at least 3.11 (with venv) on PATH; set PYTHON=/path/to/python3." >&2; exit 1; }
	@test -x $(BENCH)/bin/python || { echo "Making the environment $(BENCH) with $(PYTHON)"; "$(PYTHON)" -m venv $(BENCH); }
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bf16]' matplotlib
	for peer in $(PEERS); do $(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" \
		|| echo "$$peer cannot be installed here: shown as absent"; done
	@touch $@

bench: $(BENCH)/.ready  ## every row beside its peers, half an hour; rewrites benchmarks/RESULTS.md
	$(BENCH)/bin/python -m benchmarks.run

bench-quick: $(BENCH)/.ready  ## a dozen rows beside their peers, three minutes
	$(BENCH)/bin/python -m benchmarks.run --quick --rounds 3 --minutes 2.8

bench-compile: $(READY)  ## compile, cache, import and call times
	$(BIN)/python benchmarks/compile_time.py --json benchmarks/results/compile_time.jsonl

docs: $(READY)  ## rewrite the command outputs that README and docs show
	$(BIN)/python docs/refresh.py

fuzz: $(READY)  ## ten minutes of random operators and plans, 20,000 verdicts, then property tests with more examples
	$(BIN)/polyopt fuzz --seconds 600
	$(BIN)/python -m tests.fuzz.verdicts --count 20000 --seed $$(date +%s)
	$(BIN)/pytest -q -n $(JOBS) -m 'hypothesis and not cuda' --hypothesis-profile=fuzz --timeout=0

trust: $(READY)  ## 200,000 verdicts, 2,000 planted faults, the full matrix, exhaustive functions; SHARD=k/n runs a part
	$(BIN)/python -m tests.fuzz.verdicts --count 200000 --seed $$(date +%s)
	$(BIN)/python -m tests.mutation.harness --count 140 --seed $$(date +%s)
	$(BIN)/pytest -q -n $(JOBS) -m '(trust or exhaustive) and not cuda' --timeout=0 --shard=$(SHARD)

clean:  ## remove the environment and build output
	rm -rf $(VENV) $(BENCH) build dist .coverage .coverage.*
