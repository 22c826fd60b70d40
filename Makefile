# Everything starts here: `make help`. Needs Python 3.11 or later with its venv module, and nothing else.
# The environment is .venv in this folder; packages are the ones that requirements.lock pins by hash.
PORT ?= 8000
ARGS ?=
PYTHON ?= python3
# PyTorch's build, as uv names it: TORCH=cpu leaves out several GB of CUDA libraries.
TORCH ?=

python := .venv/bin/python
uv := $(python) -m uv
# The environment is up to date when it was installed from these two files in this place.
key := $(shell { pwd; cat pyproject.toml requirements.lock; } | cksum | tr ' ' -)

# uv knows its own list of certificates; the system's list, where there is one, also holds a company's own.
export UV_SYSTEM_CERTS ?= $(if $(wildcard /etc/ssl/certs/*),1,0)

.DEFAULT_GOAL := help
.PHONY: help serve test test-all check coverage format docs tables figures lock train-env clean

help:  ## list what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

serve: .venv/.ready-serve-$(key)  ## start the service on http://127.0.0.1:8000 (PORT=8000, ARGS="--help" for more flags)
	@exec $(python) -m serving --port $(PORT) $(ARGS)

test: tests = not slow and not gpu
test: check  ## run every check and the quick tests, as CI does
	$(run_tests)

test-all: tests = slow or not slow
test-all: check  ## run every check and every test that this machine can run
	$(run_tests) --hypothesis-profile=random

check: train-env  ## run the checks without the tests: format, lint, types, import contracts, sizes, tables
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy models training serving benchmarks docs/generate.py
	$(python) .venv/bin/lint-imports
	$(python) benchmarks/structure.py --check
	$(python) benchmarks/tables.py

coverage: tests = not slow and not gpu and not untraced
coverage: train-env  ## run the quick tests and report which lines they ran
	$(run_tests) --cov --cov-report=term:skip-covered --cov-report=json:coverage.json

format: train-env  ## format the code and apply safe fixes
	$(python) -m ruff check --fix-only --quiet .
	$(python) -m ruff format .

docs: .venv/.ready-docs-$(key)  ## build the documentation into build/docs; a warning is an error
	$(python) -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs
	@echo "Written: build/docs/index.html"

tables: train-env  ## write the tables of benchmarks/results and the reference pages of docs/
	$(python) docs/generate.py

# What README shows of speed: needs two quiet cores and most of an hour.
figures: network = runs/serving_b4_380
figures: results = benchmarks/results/$(DEVICE)
figures: rivals = benchmarks/serving/.venv
figures: train-env  ## measure the figures of README anew (DEVICE=amd-epyc-2-cores names the folder of the results)
	@test -n "$(DEVICE)" || { echo "name the folder of this machine's results: make figures DEVICE=amd-epyc-2-cores" >&2; exit 1; }
	test -d $(rivals) || $(uv) venv --quiet $(rivals)
	$(uv) pip install --quiet --python $(rivals)/bin/python -r benchmarks/serving/requirements.txt
	test -d $(network) || $(python) benchmarks/serving/network.py --out $(network)
	$(python) benchmarks/serving/compare.py --bundle $(network) --rounds 3 --no-also-reduced --out $(results)/serving.json
	$(python) benchmarks/serving/overload.py --bundle $(network) --compared $(results)/serving.json --out $(results)/serving_overload.json
	$(python) benchmarks/serving/memory.py --bundle $(network) --out $(results)/serving_memory.json
	$(python) benchmarks/loader.py --rounds 5 --num-small 96 --num-camera 16 --out $(results)/loader.json
	$(python) docs/generate.py

lock: .venv/.ready-uv-$(key)  ## write requirements.lock anew, keeping the pins that still hold (ARGS=--upgrade moves them)
	$(uv) pip compile pyproject.toml --all-extras --universal --python-version 3.11 --fork-strategy fewest \
	    --generate-hashes --no-annotate --no-emit-package botanify --custom-compile-command "make lock" \
	    --quiet --output-file requirements.lock $(ARGS)

train-env: .venv/.ready-train-$(key)  ## install what training and the tests need (TORCH=cpu: without CUDA), and run nothing

clean:  ## remove the environment and every cache
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache botanify.egg-info build
	find models training serving tests $(wildcard benchmarks) -name __pycache__ -prune -exec rm -rf {} +

# Two processes halve the time on two cores. The tests of a file share what they prepared, so they stay together. Files
# start in the order of the folders: by default those with few tests would start last, and these hold the longest tests.
run_tests = $(python) -m pytest -m '$(tests)' -n 2 --dist loadfile --no-loadscope-reorder

# ---- the environment ----------------------------------------------------------------------------------

# One line each for what a fresh machine may lack. --clear: a .venv without a working Python is no use to anybody.
.venv/bin/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || \
	    { echo "botanify needs Python 3.11 or later, and there is no $(PYTHON): install it, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "botanify needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) --version 2>&1): name a newer one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	    { echo "botanify needs Python's venv module, and $(PYTHON) has none: install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@echo "Making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear .venv

# pip brings uv, checked against its hashes in requirements.lock; uv does the rest. The first line covers an
# environment that was made without pip, or whose making was interrupted.
.venv/.ready-uv-$(key): | .venv/bin/python
	@$(python) -m pip --version >/dev/null 2>&1 || $(python) -m ensurepip >/dev/null
	@sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	@$(python) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: -r .venv/uv.txt
	@touch $@

# Packages are added and moved to their pinned versions, never removed. A stamp that says otherwise goes first,
# so that an interrupted installation is taken up again.
constraints = $(if $(TORCH),.venv/constraints.txt,requirements.lock)
# The lock has the hashes of the builds for CUDA; another build has the same version and other hashes.
without_hashes_of_torch = sed -E '/^torch(vision)?==/,/[^\\]$$/{/--hash/d;s/ *\\$$//;}' requirements.lock
without_torch_index = { echo "TORCH=$(TORCH) needs the package index of PyTorch itself. Where that is closed: run the same without TORCH" >&2; exit 1; }
define install
	@rm -f .venv/.ready-serve-* .venv/.ready-train-* .venv/.ready-docs-*
	$(if $(TORCH),@$(without_hashes_of_torch) > $(constraints))
	$(uv) pip install --python $(python) --constraints $(constraints) --build-constraints requirements.lock \
	    $(if $(TORCH),--torch-backend $(TORCH)) --verify-hashes --compile-bytecode --editable '.[$(1)]'$(if $(TORCH), || $(without_torch_index))
endef

.venv/.ready-serve-$(key): .venv/.ready-uv-$(key)
	$(call install,serve$(comma)folders$(comma)client$(comma)corrections)
	@touch $@

.venv/.ready-train-$(key): .venv/.ready-uv-$(key)
	$(call install,serve$(comma)folders$(comma)client$(comma)corrections$(comma)train$(comma)dev)
	@touch .venv/.ready-serve-$(key) $@

.venv/.ready-docs-$(key): .venv/.ready-uv-$(key)
	$(call install,serve$(comma)folders$(comma)client$(comma)corrections$(comma)docs)
	@touch .venv/.ready-serve-$(key) $@

comma := ,
