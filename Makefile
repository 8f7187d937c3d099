# `make demo` and `make test` need only Python 3.11 or newer: they create .venv and install everything else there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORES  := $(shell getconf _NPROCESSORS_ONLN)
# Files in their order: those whose tests wait for processes come before the short ones of the units.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder -q
# Tests of processes wait much, so that one more worker than there are cores keeps all cores busy.
MORE   := -n $(shell expr $(CORES) + 1)
# Pythons of `make pythons`; those that are not on the machine are left out.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
# Random draws of `make paper`.
RUNS   ?= 100

# Tests start many processes: each would compile all modules again, which takes a second.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo quick test test-all docs docs-check docs-site-check lint format bench arena ahead scaling network security private tune readme paper package pythons clean

help:
	@echo "make demo        compare twelve simulated clinics alone, pooled and together, and write elmesh-demo/report.html"
	@echo "make quick       unit and contract tests without the slow ones (under a minute)"
	@echo "make test        lint, types, import contract, tests, and the checks of docs and committed results"
	@echo "make test-all    the same with the slow, exhaustive cases"
	@echo "make docs-check  only the checks of docs, README and committed benchmark files"
	@echo "make docs        build the documentation with its gallery: docs/_build/html/index.html (a minute and a half)"
	@echo "make docs-site-check  build it, and check all links, and pages in a browser on a phone and a desktop"
	@echo "make bench       run the benchmarks; each writes one JSON object to benchmarks/results/"
	@echo "make arena       compare with other methods on twelve real tables and on adversarial cases (an hour); docs/arena.md, docs/compare.md"
	@echo "make ahead       compare with the optimum and other methods on USPS, MNIST and School (20 minutes); docs/ahead.md"
	@echo "make scaling     measure rounds per second under MPI and model a cluster; docs/scaling.md"
	@echo "make network     measure agents over mutual TLS: rounds per second, rejoining, memory (10 minutes); docs/network.md"
	@echo "make security    attack masked sums, private totals and U_t, and time masks (an hour); docs/attacks.md"
	@echo "make private     measure what differential privacy costs on twelve tables, and audit it (two hours); docs/privacy.md"
	@echo "make tune        compare settings by rows left out with grid search (20 minutes); docs/tuning.md"
	@echo "make readme      run demo and bench, and write their figures into the README"
	@echo "make paper       reproduce the paper's evaluation with RUNS=100 runs (an hour and a half); docs/paper.md"
	@echo "make package     build sdist and wheel into dist/, and check them and CITATION.cff"
	@echo "make pythons     test the wheel with every Python of PYTHONS, and with the oldest allowed dependencies"
	@echo "make format      format the code with ruff"
	@echo "make clean       remove .venv and everything that was built"

# constraints.txt pins the tested versions. The stamp is made again when either file changes.
$(VENV)/stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmesh needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs,paper,mpi,network,onnx,duckdb,bench]'
	@touch $@

demo: $(VENV)/stamp
	$(BIN)/elmesh demo --force

lint: $(VENV)/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers $(CORES)
	$(BIN)/lint-imports

quick: $(VENV)/stamp
	$(PYTEST) -n $(CORES) -m "not slow and not thorough" --hypothesis-profile quick tests/contracts tests/unit

test: lint
	$(PYTEST) $(MORE) -m "not slow"

test-all: lint
	$(PYTEST) $(MORE) --hypothesis-profile exhaustive

docs-check: $(VENV)/stamp
	$(PYTEST) -n $(CORES) -m "not slow" tests/docs

# One BLAS thread, so that pictures do not depend on the number of cores. A warning is an error.
docs: $(VENV)/stamp
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

docs-site-check: docs
	ELMESH_SITE=docs/_build/html $(PYTEST) -m slow tests/docs/test_site.py

bench: $(VENV)/stamp
	$(BIN)/python -m benchmarks

# After an interrupt the same command continues.
arena: $(VENV)/stamp
	$(BIN)/python -m benchmarks arena adversarial fit_growth digits gains compare federated
	$(BIN)/python tools/arena.py
	$(BIN)/python tools/comparison.py

ahead: $(VENV)/stamp
	$(BIN)/python -m benchmarks optimum bytes ways diffusion
	$(BIN)/python tools/ahead.py
	$(BIN)/python tools/readme.py

scaling: $(VENV)/stamp
	$(BIN)/python -m benchmarks mpi
	$(BIN)/python tools/scaling.py

network: $(VENV)/stamp
	$(BIN)/python -m benchmarks network
	$(BIN)/python tools/network.py

security: $(VENV)/stamp
	$(BIN)/python -m benchmarks basis totals site_weights masks
	$(BIN)/python tools/attacks.py

# After an interrupt the same command continues.
private: $(VENV)/stamp
	$(BIN)/python -m benchmarks private_arena audit
	$(BIN)/python tools/privacy.py

# After an interrupt the same command continues.
tune: $(VENV)/stamp
	$(BIN)/python -m benchmarks tune
	$(BIN)/python tools/tuning.py

# A tool whose dependencies are older than those of all others.
build/citation/stamp:
	$(PYTHON) -m venv build/citation
	build/citation/bin/python -m pip install --quiet --disable-pip-version-check cffconvert==2.0.0
	@touch $@

package: $(VENV)/stamp build/citation/stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[package]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	build/citation/bin/cffconvert --validate

pythons: package
	$(PYTHON) tools/pythons.py $(PYTHONS)
	$(PYTHON) tools/pythons.py --oldest $(PYTHON)

readme: demo bench
	$(BIN)/python tools/readme.py

# After an interrupt the same command continues.
paper: $(VENV)/stamp
	$(BIN)/elmesh reproduce all --runs $(RUNS) --out elmesh-paper
	$(BIN)/python tools/paper.py elmesh-paper
	$(BIN)/python tools/readme.py

format: $(VENV)/stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist docs/_build docs/gallery docs/reference .pytest_cache .mypy_cache .ruff_cache .hypothesis elmesh-compare* elmesh-demo elmesh-evaluate* elmesh-paper
