PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start many processes, each of which would compile the package anew without its cached bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-thorough test-slow lint types tests docs dist bench bench-quick bench-cluster mutate clean

demo: .venv/.installed  ## the main job: ten unequal clients, alone and together
	$(BIN)/equipoise compare --data digits --partition dirichlet:0.3 --clients 10 --methods standalone,fedavg,fedakd,poise --seeds 1 \
		--rounds 20 --set training.lr=0.1 --set training.epochs=2 --out comparisons/demo

test: lint types tests  ## linter, type checker and the tests to run after every change

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-dev
	$(BIN)/mypy

# Runs write and sync many small files: a small run takes half as long in memory as on a disk.
# In containers /dev/shm is often small; then the disk is used.
MEMORY := $(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 4000000 {print "TMPDIR=/dev/shm"}')

tests: .venv/.installed-dev
	$(MEMORY) $(BIN)/pytest -n 2 --dist worksteal -rs

test-thorough: .venv/.installed-dev  ## further methods, networks and whole commands; CI runs it, too
	$(MEMORY) $(BIN)/pytest -n 2 --dist worksteal -rs -m 'thorough and not slow'

test-slow: .venv/.installed-dev  ## faults, clusters and networks of many processes; an hour
	$(MEMORY) $(BIN)/pytest -m slow

docs: .venv/.installed-docs  ## the documentation site, in the folder site; a broken link or anchor fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: .venv/.installed-dev  ## wheel and source archive, in the folder dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,track,tables,dicom,cluster]'
	touch $@ .venv/.installed

.venv/.installed-docs: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $@ .venv/.installed

bench: .venv/.installed  ## against public simulators and the bound, taking turns round by round; needs EQUIPOISE_DATA
	$(BIN)/python benchmarks/paired.py

bench-quick: .venv/.installed  ## whether a change cost something, within ten minutes; BEFORE=TREE takes another version along; needs EQUIPOISE_DATA
	$(BIN)/python benchmarks/paired.py --quick $(if $(BEFORE),--before $(BEFORE))

bench-cluster: .venv/.installed-dev  ## a Ray cluster against worker processes: ADDRESS=HOST:PORT, or two nodes on this machine; needs EQUIPOISE_DATA
	$(BIN)/python benchmarks/cluster.py $(if $(ADDRESS),--address $(ADDRESS)) --write

N ?= 200
SEED ?= 1
mutate: .venv/.installed-dev  ## how much the tests see: N changes of the source at random, and the share that some test catches
	$(BIN)/python tests/mutation/mutate.py -n $(N) --seed $(SEED)

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .mutation
