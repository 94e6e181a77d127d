# `make help` lists what there is. Everything runs in .venv, which tools/setup.sh makes from requirements/.

.DEFAULT_GOAL := help
.PHONY: help setup run test test-live test-variants test-layouts test-long test-servers test-browser peers releases benchmarks lint requirements notebooks lab kernel-gpu tiny clean
.NOTPARALLEL:
.ONESHELL:
.SILENT:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# Settings, each also possible behind `make <goal>`: make run PROFILE=my.yaml
#   PROFILE  the case that `make run` works on: a YAML file
#   PYTHON   the Python (3.11 to 3.13) that .venv is made from; empty: the first that is found, 3.11 before others
#   ROUTE    cpu or gpu: which SGLang is installed; empty: by whether there is a CUDA device
#   RUN      more options for `wiring run`, for example RUN="--fresh"
#   PYTEST   what `make test` tests, for example PYTEST="tests/unit/engines -k layout"; empty: all but what has a goal of its own
#   LAB      more options for JupyterLab, for example LAB="--no-browser --port 8899"
#   CLEAN    --yes: `make clean` does not ask
PROFILE ?= data/profiles/cpu-tiny.yaml
PYTHON ?=
ROUTE ?=
RUN ?=
CLEAN ?=
PYTEST ?=
LAB ?=
export PROFILE PYTHON ROUTE

# No file is named by make itself, so the folder may lie anywhere and have spaces in its name.
HERE := $(shell cd "$$(dirname "$(strip $(MAKEFILE_LIST))")" && pwd)
export HERE
# plotly would guess its renderer from the surroundings; the notebooks keep the plain data of their figures
export PLOTLY_RENDERER := plotly_mimetype

PY := .venv/bin/python

define ENTER
cd "$$HERE"
endef

# WIRING_PEERS_PYTHON names the Python of an environment that has the trainers already
define PEERS
$(ENTER); if [ -z "$${WIRING_PEERS_PYTHON:-}" ]; then tools/setup.sh peers; fi
endef

help: ## this list
	$(ENTER); grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: ## create or update .venv from requirements/; does nothing where nothing changed
	$(ENTER); exec tools/setup.sh

run: PROFILE_PATH = "$$(cd "$(CURDIR)" && if [ -e "$$PROFILE" ]; then realpath "$$PROFILE"; else echo "$$PROFILE"; fi)"
run: setup ## the five notebooks on a profile, to runs/<case>/report.html; goes on where it was interrupted
	profile=$(PROFILE_PATH); $(ENTER); exec $(PY) -m wiring run "$$profile" $(RUN)

# What starts no server runs side by side; servers run one after the other, or they would starve each other.
OWN_GOALS := not live and not peers and not benchmark and not variants and not long and not layouts and not releases and not browser
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 300 --nbval-kernel-startup-timeout 300

test: setup ## all tests but those with a goal of their own, and nbval on the notebooks
	$(ENTER)
	if [ -n '$(subst ','\'',$(PYTEST))' ]; then exec $(PY) -m pytest $(PYTEST); fi
	status=0
	OMP_NUM_THREADS=1 $(PY) -m pytest tests notebooks $(NBVAL) -n 2 --dist loadfile -m "not server and $(OWN_GOALS)" || status=$$?
	$(PY) -m pytest tests -m "server and $(OWN_GOALS)" || status=$$?
	exit $$status

test-live: setup ## hold the recorded figures against a full live run
	$(ENTER); exec $(PY) -m pytest tests -m live

test-variants: setup ## every kind of draft on SGLang's CPU server proposes the same tokens as here (8 servers)
	$(ENTER); exec $(PY) -m pytest -s tests/server/test_cpu_draft_variants.py

test-layouts: setup ## what SGLang's CPU server feeds the draft of each target family is what the rules say (10 servers)
	$(ENTER); exec $(PY) -m pytest -s tests/server/test_cpu_served_layouts.py

test-long: setup ## what make test runs a share of: searches of many corrupted drafts, all planted faults, every notebook saved twice (15 minutes)
	$(ENTER); OMP_NUM_THREADS=1 exec $(PY) -m pytest tests -n 2 -m "long and not server"

test-servers: setup ## what make test runs a share of, on real servers: more chains, a patched copy of SGLang, wiring ab, the server panel (20 minutes)
	$(ENTER); exec $(PY) -m pytest tests -m "long and server"

# A Chromium is looked for and, on Debian as root, installed: Playwright's own would come from a host of its own.
test-browser: setup ## the notebooks, their widgets and the report in a browser; pictures of them in runs/browser (5 minutes)
	$(ENTER); tools/setup.sh browser
	if ! $(PY) -c 'from wiring.figures.export_images import find_browser; find_browser()' 2>/dev/null; then
	  if [ "$$(id -u)" != 0 ] || ! type -P apt-get >/dev/null; then
	    echo "No Chromium or Chrome was found. Debian: apt install chromium; or name one in BROWSER_PATH." >&2; exit 2
	  fi
	  echo "Installing Debian's chromium; usually 1 minute, 400 MB."
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends chromium fonts-dejavu-core
	fi
	exec $(PY) -m pytest -s tests/external/browser -m browser

peers: setup ## the same numbers as other trainers' own code, installed beside it in .venv-peers (2.6 GB)
	$(PEERS); exec $(PY) -m pytest tests/external/peers -m peers

releases: setup ## the layer rules against SGLang's own code: 18 releases, downloaded once (200 MB), run, not installed
	$(ENTER); exec $(PY) -m pytest tests/external/releases -m releases

benchmarks: setup ## time the evaluation against the other trainers', and what capture costs (wants an idle machine)
	$(PEERS); exec $(PY) -m pytest tests/external/benchmarks -m benchmark

lint: setup ## ruff, ruff format, pyright, the order of rooms (import-linter) and code that nothing reaches (vulture)
	$(ENTER); tools/setup.sh lint
	status=0
	$(PY) -m ruff check lib tests tools conftest.py || status=1
	$(PY) -m ruff format --check lib tests tools conftest.py || status=1
	PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT=1 $(PY) -m pyright || status=1
	$(PY) .venv/bin/lint-imports || status=1
	$(PY) tools/unused_code.py || status=1
	exit $$status

requirements: setup ## compile the lists of pyproject.toml to requirements/*.txt again, after a pin has changed
	$(ENTER); exec tools/compile_requirements.sh

notebooks: setup ## measure live, record the artefacts in data/recorded/, and save the notebooks executed
	$(ENTER)
	$(PY) -m wiring run data/profiles/cpu-tiny.yaml $(RUN)
	$(PY) -m wiring record cpu-tiny
	$(PY) -m wiring.figures.picture data/recorded/cpu-tiny data/recorded/cpu-tiny/verdict.png
	exec $(PY) -m wiring.figures.save_reference notebooks/*.ipynb

# Lab's root is the checkout, so that the index can link to runs and profiles. Tabs that are open are remembered in .venv,
# not among those of the reader's other projects. Jupyter refuses root unless told; it listens on 127.0.0.1, with a token.
lab: setup ## JupyterLab on notebooks/, the index first; without a browser it prints the address (LAB="--no-browser")
	$(ENTER); $(PY) -m wiring.workbook.jupyter_kernel
	root=(); if [ "$$(id -u)" = 0 ]; then root=(--allow-root); fi
	export JUPYTER_PREFER_ENV_PATH=1 JUPYTERLAB_WORKSPACES_DIR="$$PWD/.venv/share/jupyter/lab-workspaces"
	exec $(PY) -m jupyterlab --ServerApp.root_dir="$$PWD" --LabApp.default_url=/lab/tree/notebooks/00_index.ipynb \
	  --MultiKernelManager.default_kernel_name=wiring "$${root[@]}" $(LAB)

kernel-gpu: setup ## register the kernel wiring-gpu in .venv, with this shell's CUDA, NCCL, SGLang and cache variables
	$(ENTER); exec $(PY) -m wiring.workbook.jupyter_kernel --gpu

tiny: setup ## make the tiny target, draft and states in data/tiny again from a seed (about 30 minutes)
	$(ENTER); PYTHONPATH=tools exec $(PY) -m tiny

clean: ## remove run folders (asks first) and caches; .venv stays
	$(ENTER)
	if [ -x $(PY) ]; then $(PY) -m wiring clean --all $(CLEAN); fi
	rm -rf .pytest_cache .ruff_cache
	find lib tests notebooks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
