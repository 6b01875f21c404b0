# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs, once: .venv from constraints.txt, and again only when that or pyproject.toml changed.
# Frameworks that gravac has integrations of are in an environment of their own, .venv-integrations.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PIP = -m pip install --quiet --no-input --disable-pip-version-check --no-compile  # PyTorch's files by the thousand
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, each of which would compile gravac anew
INSTALL = $(BIN)/python $(PIP) -c constraints.txt

.PHONY: help environment environment-integrations demo test test-long test-all test-integrations test-ray golden lint docs check-wheel

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 24

demo: $(VENV)/.lab  ## a model on real text over a slow link, compressed adaptively (ARGS="--seconds 30")
	$(BIN)/gravac demo $(ARGS)

PYTEST = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

test: $(VENV)/.test  ## the tests of each change (ARGS="-k topk", "-n 0" for one process, "--shuffle 7" for another order)
	$(PYTEST) $(ARGS)

test-long: $(VENV)/.test  ## also tests that are marked "long", and laws tried 500 times each instead of 30 (an hour)
	$(PYTEST) --hypothesis-profile long --timeout 3600 $(ARGS)

test-all: test-long test-integrations test-ray  ## all that may wait for the night (two hours)

INTEGRATIONS := .venv-integrations
LANGUAGE_TESTS := tests/lab/test_tasks.py tests/lab/test_language.py

test-integrations: environment-integrations  ## with Lightning, Accelerate and Hugging Face's Trainer themselves, in a .venv-integrations (minutes)
	$(INTEGRATIONS)/bin/python -m pytest --numprocesses 2 --dist loadfile -m framework \
		tests/integrations tests/packaging/test_docs_run.py $(LANGUAGE_TESTS) $(ARGS)

test-ray: $(INTEGRATIONS)/.ray  ## with Ray Train itself, in the same environment (2 minutes)
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations/ray $(ARGS)

golden: $(VENV)/.test  ## whether fourteen runs are the same as at BEFORE=<commit>, bit for bit; each side by its own driver (5 minutes)
	@test -n "$(BEFORE)" || { echo "golden: name a commit, such as BEFORE=HEAD~3"; exit 2; }
	$(BIN)/python -m tests.golden against $(BEFORE)

lint: $(VENV)/.dev  ## ruff, mypy --strict, codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

docs: $(VENV)/.docs  ## the documentation as a site, in site/; a link between pages that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check-wheel: $(VENV)/.dev  ## sdist and wheel of HEAD: what is in them, each in an empty environment, the demo (3 minutes)
	bash tests/packaging/check_wheel.sh $(BIN)/python

# One stamp per extra, all of one .venv: what is installed already is not installed again. torch goes first and alone, so
# that the pinned build is there before anything else asks for one. gravac itself is built once; its extras are then known.
$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "gravac needs Python 3.10 or newer: make PYTHON=...")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing gravac into $(VENV)... (once, a few minutes)"
	@$(INSTALL) torch
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.%: $(VENV)/.base
	@echo "installing gravac[$*] into $(VENV)... (once)"
	@$(INSTALL) 'gravac[$*]'
	@touch $@

environment: $(VENV)/.environment  ## all that lint, tests and docs need, in .venv

$(VENV)/.environment: $(VENV)/.base
	@echo "installing gravac[dev,docs] into $(VENV)... (once)"
	@$(INSTALL) 'gravac[dev,docs]'
	@$(BIN)/python -c 'import torch._dynamo, gravac.lab, torch.utils.tensorboard'  # compiled once, not in each process
	@touch $(addprefix $(VENV)/.,dev docs lab test environment)  # lab and test are parts of dev

environment-integrations: $(INTEGRATIONS)/.integrations  ## what integrations' tests need, in .venv-integrations

# It sees .venv's packages beside its own, pinned alike, so that torch is not installed twice; .venv does not see its.
PACKAGES = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(INTEGRATIONS)/.integrations: $(VENV)/.test constraints-integrations.txt
	@echo "installing gravac[integrations] into $(INTEGRATIONS)... (once, a minute)"
	@$(BIN)/python -m venv --clear $(INTEGRATIONS)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" \
		>"$$($(INTEGRATIONS)/bin/python $(PACKAGES))/packages_of_venv.pth"
	@$(INTEGRATIONS)/bin/python $(PIP) -c constraints-integrations.txt 'gravac[integrations]'
	@touch $@

$(INTEGRATIONS)/.ray: $(INTEGRATIONS)/.integrations
	@echo "installing gravac[ray] into $(INTEGRATIONS)... (once, a minute)"
	@$(INTEGRATIONS)/bin/python $(PIP) -c constraints-integrations.txt 'gravac[ray]'
	@touch $@

# targets share .venv: never two installations at once
.NOTPARALLEL:
.PRECIOUS: $(VENV)/.base $(VENV)/.lab $(VENV)/.test $(VENV)/.dev $(VENV)/.docs
