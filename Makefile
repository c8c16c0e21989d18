# `make run` and `make test` need only make and Python 3.11 or newer; they install the rest in .venv.

.DEFAULT_GOAL := help
.PHONY: help setup run demo testbed test check soak lint format bench docs clean

VENV := .venv
BIN := $(VENV)/bin
# Contains the digest of the installed inputs, so that a touched but unchanged file installs nothing.
STAMP := $(VENV)/.installed
INPUTS := pyproject.toml constraints.txt
KERNELS := $(VENV)/.kernels

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(KERNELS) ## Create .venv and install everything in it

$(STAMP): $(INPUTS) scripts/setup.sh
	@scripts/setup.sh $(VENV) $(STAMP) $(INPUTS)

# The kernel cache is outside of this directory and keyed by kernel version, so clones and versions share it.
$(KERNELS): $(STAMP) $(wildcard src/levada/kernels/*.py src/levada/compat/gavel/kernels/*.py) src/levada/core/layout.py
	@$(BIN)/levada precompile
	@touch $@

# Three policies, three loads, three seeds: about 1 minute on two cores.
SWEEP := --policy fifo,max_min_fairness,max_min_fairness_perf --cluster v100=4,p100=4,k80=4 \
	--workload gavel --jobs 60 --fixed-duration 14400 --rate 2,3,4 --seed 0-2

run: $(STAMP) ## Start a server with simulated GPUs and run real, elastic jobs on it (1 minute)
	@$(BIN)/levada tour examples/numpy/train.py

# These simulations are too small to need compiled kernels.
demo: $(STAMP) ## Simulate one day of jobs, then compare policies, with a figure
	@$(BIN)/levada demo
	@rm -rf build/run && mkdir -p build
	@printf '\nThree policies at three loads (about 1 minute):\n\n'
	@$(BIN)/levada sim sweep $(SWEEP) --out build/run
	@$(BIN)/levada sim plot jct build/run --out build/run/jct.png
	@$(BIN)/levada sim plot report build/run --out build/run/report.html
	@printf '\nNext: open build/run/jct.png and build/run/report.html; run real jobs with make run;\n'
	@printf 'simulate your own with $(BIN)/levada sim run --help (docs/simulator.md, docs/sweeps.md).\n'

testbed: $(STAMP) ## Build the Kubernetes test bed for the tests (about 15 minutes the first time; needs Go 1.26)
	@$(BIN)/python -m tests.kubernetes.testbed.build

# Each run has its own temporary directory, which is kept if a test fails. Without the test bed its tests are skipped.
test: $(KERNELS) lint $(if $(filter true,$(CI)),testbed) ## Run lint, types, layers and all tests (about 30 minutes on two cores)
	@echo "tests: about 8,000, 30 minutes on two cores"
	@folder=$$(mktemp -d) && $(BIN)/python -m pytest -q -n auto --basetemp="$$folder/t" && rm -rf "$$folder"

# NOT_UNIT lists files that `make check` skips: slow ones, and ones that start processes (which fails there).
UNIT := core kernels tables perf placement policies engine solve jobfile allocate
NOT_UNIT := allocate/test_shares engine/test_engine_faults engine/test_fork engine/test_random_walk engine/test_state_access \
	engine/test_kernel_modes jobfile/test_program jobfile/test_script policies/test_dragon policies/test_laws_in_the_engine \
	policies/test_types solve/test_golden solve/test_packed solve/test_price

check: $(KERNELS) lint ## Run lint, types, layers and unit tests without processes (less than 1 minute)
	@echo "check: about 3,000 unit tests"
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q -n auto --no-processes \
		tests/test_docs.py tests/test_language.py $(UNIT:%=tests/%) $(NOT_UNIT:%=--ignore=tests/%.py)

# SEED repeats a failed run. MINUTES are divided among the available stores.
MINUTES := 10
SEED :=

soak: $(KERNELS) ## Run the fault soak test: kill, freeze and restart components (SEED=7 MINUTES=10)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(STAMP) ## Run ruff, mypy --strict and import-linter
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@echo "lint: mypy --strict (30 s the first time)"
	@$(BIN)/mypy --no-error-summary
	@echo "lint: layers"
	@$(BIN)/lint-imports --no-logo

format: $(STAMP) ## Format and fix the sources with ruff
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

bench: $(KERNELS) ## Measure the decision time of every policy
	@$(BIN)/python -m bench

# The variable suppresses a notice about the end of maintenance of the theme (May 2027).
docs: $(STAMP) ## Build the documentation site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open build/site/index.html"

clean: ## Remove .venv, caches and build results
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
