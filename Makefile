# `make demo` and `make test` need nothing but Python 3.11 or newer: they make .venv and do the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile -q

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format bench ahead scaling network security readme paper clean

help:
	@echo "make demo      fit the four methods on bundled digits; writes elmesh-demo/report.html"
	@echo "make test      lint, types, import contract and the tests"
	@echo "make test-all  the same with the slow, exhaustive cases"
	@echo "make bench     the benchmarks; one JSON object each, in benchmarks/results/"
	@echo "make ahead     compare with the optimum and the rivals on USPS, MNIST and School (20 minutes); docs/ahead.md"
	@echo "make scaling   rounds a second under MPI, and what a cluster would do; docs/scaling.md"
	@echo "make network   agents over mutual TLS: rounds a second, rejoining, memory (10 minutes); docs/network.md"
	@echo "make security  what neighbours can find out from what is sent; docs/security.md"
	@echo "make readme    demo and bench, and their figures into the README"
	@echo "make paper     reproduce the paper's evaluation, 100 runs (half an hour), and write docs/paper.md"
	@echo "make format    let ruff put the code in order"
	@echo "make clean     remove .venv and what was built"

# What was tested is pinned in constraints.txt; the stamp is remade when either file changes.
$(VENV)/stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmesh needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,paper,mpi,network]'
	@touch $@

demo: $(VENV)/stamp
	$(BIN)/elmesh demo --force

lint: $(VENV)/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(PYTEST) -m "not slow"

test-all: lint
	$(PYTEST)

bench: $(VENV)/stamp
	$(BIN)/python -m benchmarks

ahead: $(VENV)/stamp
	$(BIN)/python -m benchmarks optimum bytes ways
	$(BIN)/python tools/ahead.py
	$(BIN)/python tools/readme.py

scaling: $(VENV)/stamp
	$(BIN)/python -m benchmarks mpi
	$(BIN)/python tools/scaling.py

network: $(VENV)/stamp
	$(BIN)/python -m benchmarks network
	$(BIN)/python tools/figures_of_network.py

security: $(VENV)/stamp
	$(BIN)/python -m benchmarks privacy
	$(BIN)/python tools/security.py

readme: demo bench
	$(BIN)/python tools/readme.py

# It goes on where it was interrupted.
paper: $(VENV)/stamp
	$(BIN)/elmesh reproduce all --runs 100 --out elmesh-paper
	$(BIN)/python tools/paper.py elmesh-paper
	$(BIN)/python tools/readme.py

format: $(VENV)/stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis elmesh-demo elmesh-paper
