# `make run` and `make test` need only make and Python 3.11 or newer; they set up the rest in .venv.

.DEFAULT_GOAL := help
.PHONY: help setup run demo test soak lint format bench clean

VENV := .venv
BIN := $(VENV)/bin
# Holds the digest of what was installed, so that a touched but unchanged file installs nothing.
STAMP := $(VENV)/.installed
INPUTS := pyproject.toml constraints.txt
KERNELS := $(VENV)/.kernels

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(KERNELS) ## Make .venv and install everything in it (quick when done)

$(STAMP): $(INPUTS) scripts/setup.sh
	@scripts/setup.sh $(VENV) $(STAMP) $(INPUTS)

# The cache is outside of this folder, by version of the kernels: other clones and later versions find theirs in it.
$(KERNELS): $(STAMP) $(wildcard src/levada/kernels/*.py) src/levada/core/layout.py
	@$(BIN)/levada precompile
	@touch $@

# Three policies, three loads, three seeds: small enough for a minute on two cores.
SWEEP := --policy fifo,max_min_fairness,max_min_fairness_perf --cluster v100=4,p100=4,k80=4 \
	--workload gavel --jobs 60 --fixed-duration 14400 --rate 2,3,4 --seed 0-2

run: $(STAMP) ## Start a server on pretend GPUs and watch real jobs start, grow, shrink, wait and finish
	@$(BIN)/levada tour examples/numpy/train.py

# Simulations as small as these need no compiled kernels.
demo: $(STAMP) ## Simulate a day of jobs, then compare policies, with a picture
	@$(BIN)/levada demo
	@rm -rf build/run && mkdir -p build
	@printf '\nThree policies at three loads (about a minute):\n\n'
	@$(BIN)/levada sim sweep $(SWEEP) --out build/run
	@$(BIN)/levada sim plot jct build/run --out build/run/jct.png
	@$(BIN)/levada sim plot report build/run --out build/run/report.html
	@printf '\nNext: look at build/run/jct.png and build/run/report.html; see real jobs with make run;\n'
	@printf 'simulate your own with $(BIN)/levada sim run --help (docs/simulator.md, docs/sweeps.md).\n'

# In a folder of their own, so that no earlier run's leftovers matter; it stays when a test fails.
test: $(KERNELS) lint ## Lint, types, layers and tests
	@echo "tests: some 5,000, ten minutes or so"
	@folder=$$(mktemp -d) && $(BIN)/python -m pytest -q -n auto --basetemp="$$folder/t" && rm -rf "$$folder"

# SEED repeats a run that went wrong. The minutes are divided between the stores that there are.
MINUTES := 10
SEED :=

soak: $(KERNELS) ## Kill, freeze and restart everything while clients submit jobs (SEED=7 MINUTES=10)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(STAMP) ## ruff, mypy --strict and the layers of the packages
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "lint: mypy --strict (half a minute the first time)"
	@$(BIN)/mypy --no-error-summary
	@echo "lint: layers"
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Let ruff format and mend the sources
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

bench: $(KERNELS) ## Time the decisions of every policy
	@$(BIN)/python -m bench

clean: ## Remove .venv, caches and build results
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
