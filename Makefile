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

.PHONY: help environment environment-integrations demo test test-long test-loaded test-integrations test-integrations-short test-trackers test-torchft test-ray real test-kernels test-hsdp test-cuda-fake audit-cuda golden lint docs tables pictures check-tables check-wheel check-examples check-bounds measure-newcomer measure-multilevel measure-norms measure-overhead \
	measure-soak measure-chunks measure-memory measure-hsdp measure-hsdp-links measure-hsdp-tta \
	measure-worth measure-ladder measure-links measure-tta measure-factored measure-lowrank \
	measure-compressors measure-steps measure-judgement measure-judgement-topk \
	measure-outer-efficiency measure-outer-tta measure-outer-tta-four measure-outer-tta-long measure-outer-memory measure-outer-traffic measure-outer-costs measure-outer-delays measure-outer-ranks measure-outer-long measure-nanogpt measure-nanogpt-links measure-programs-links measure-native measure-fast-links measure-slow-links measure-changing-link measure-going-over measure-progress measure-switchback measure-predictors measure-language measure-talk measure-switching measure-demo measure-telemetry measure-torch-ddp measure-torch-fsdp measure-before-after measure-size measure-walk measure-gpu

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 24

demo: $(VENV)/.lab  ## a model on real text over a slow link, compressed adaptively (ARGS="--seconds 30")
	$(BIN)/gravac demo $(ARGS)

PYTEST = $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
SEED ?= $(shell $(PYTHON) -c 'import random; print(random.randrange(10000))')

test: $(VENV)/.test  ## all tests (ARGS="-k topk", "-n 0" for one process)
	$(PYTEST) $(ARGS)

test-long: $(VENV)/.test  ## all tests, laws tried 500 times each instead of 30
	$(PYTEST) --hypothesis-profile long --timeout 3600 $(ARGS)

test-loaded: $(VENV)/.test  ## all tests in random order (SEED=...) beside two busy processes
	@for one in 1 2; do $(BIN)/python -c 'while True: pass' & busy="$$busy $$!"; done; \
	trap 'kill $$busy' EXIT; trap 'exit 130' INT TERM; \
	$(PYTEST) --shuffle $(SEED) $(ARGS)

INTEGRATIONS := .venv-integrations
LANGUAGE_TESTS := tests/lab/test_tasks.py tests/lab/test_language.py

test-integrations: environment-integrations  ## with Lightning, Accelerate and Hugging Face's Trainer themselves, in a .venv-integrations (minutes)
	$(INTEGRATIONS)/bin/python -m pytest --numprocesses 2 --dist loadfile -m framework \
		tests/integrations tests/packaging/test_docs_run.py $(LANGUAGE_TESTS) $(ARGS)

test-integrations-short:  ## the same without examples and scripts of the docs, with one of the two packages that Lightning comes as, and one case of ranks apart each
	@$(MAKE) --no-print-directory test-integrations ARGS='-k "not example and not script_runs and not pytorch_lightning and not other_cells" $(ARGS)'

test-trackers: $(INTEGRATIONS)/.trackers  ## with Weights & Biases and MLflow themselves, in the same environment (2 minutes more)
	$(INTEGRATIONS)/bin/python -m pytest tests/telemetry/test_trackers.py $(ARGS)

test-torchft: $(INTEGRATIONS)/.torchft  ## the lab's baselines of torchft, in the same environment (a minute)
	$(INTEGRATIONS)/bin/python -m pytest tests/lab/test_apart.py -k torchft $(ARGS)

test-ray: $(INTEGRATIONS)/.ray  ## with Ray Train itself, in the same environment (2 minutes)
	$(INTEGRATIONS)/bin/python -m pytest tests/integrations/ray $(ARGS)

REAL := .venv-real

real: $(REAL)/.real  ## nanoGPT and minGPT-ddp with gravac's lines, in SOURCES=<folder with clones of karpathy/nanoGPT, pytorch/examples> (10 minutes)
	@test -n "$(SOURCES)" || { echo "real: name a folder with clones of github.com/karpathy/nanoGPT and github.com/pytorch/examples, such as SOURCES=../sources"; exit 2; }
	$(REAL)/bin/python -m tests.real $(SOURCES) $(ARGS)

test-hsdp: $(VENV)/.test  ## models in shards on four ranks, against torch's own HSDP (3 minutes)
	$(PYTEST) --hypothesis-profile long tests/hsdp $(ARGS)

CUDA_FAKE = tests/device tests/streams tests/kernels tests/compressors/test_on_device.py

test-cuda-fake: $(VENV)/.test $(VENV)/.triton  ## what is tested of GPUs without one: waits, launches, streams, order, kernels (2 minutes)
	TRITON_INTERPRET=1 $(PYTEST) --numprocesses logical $(CUDA_FAKE) $(ARGS)

audit-cuda: $(VENV)/.test $(VENV)/.triton  ## what a step would have a GPU launch, copy and wait for, counted without one (1 minute)
	$(BIN)/python -m tests.measure.cuda_audit --json docs/measurements/cuda_audit.json

measure-hsdp: $(VENV)/.test  ## models in shards: bytes over replicas, residuals, overlap (1 minute)
	$(BIN)/python -m tests.measure.hsdp --json docs/measurements/hsdp.json

measure-hsdp-links: $(VENV)/.lab $(VENV)/.test environment-integrations  ## models in shards, their replicas on two sites with 20 and 100 Mbit/s between them: time to a loss; needs root; resumable (25 minutes)
	$(INTEGRATIONS)/bin/python -m tests.measure.hsdp_links $(ARGS)

HSDP_TTA = $(INTEGRATIONS)/bin/python -m gravac bench tta --task gpt2 --mesh 2x2 --link 100mbit 20mbit \
	--methods bf16 adaptive --factored --times-each-seed --budget 120 --json docs/measurements/hsdp_tta.json

measure-hsdp-tta: $(VENV)/.lab environment-integrations  ## gravac bench tta of a model in shards: three widths, two links, two seeds; needs root; resumable (40 minutes)
	set -e; for seed in 0 1; do for scale in 0.45 1 1.8; do $(HSDP_TTA) --seeds 1 --first-seed $$seed --scale $$scale; done; done

measure-memory: $(VENV)/.test  ## what gravac would take of a GPU's memory, counted without one (2 minutes)
	$(BIN)/python -m tests.measure.memory --json docs/measurements/memory.json

test-kernels: $(VENV)/.test $(VENV)/.triton  ## the Triton kernels, interpreted on a CPU (1 minute)
	TRITON_INTERPRET=1 $(PYTEST) --numprocesses logical tests/kernels $(ARGS)

golden: $(VENV)/.test  ## whether eleven runs are the same as at BEFORE=<commit>, bit for bit; each side by its own driver (2 minutes)
	@test -n "$(BEFORE)" || { echo "golden: name a commit, such as BEFORE=HEAD~3"; exit 2; }
	$(BIN)/python -m tests.golden against $(BEFORE)

lint: $(VENV)/.dev  ## ruff, mypy --strict, codespell, names that fit anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m tests.packaging.names

docs: $(VENV)/.docs  ## the documentation as a site, in site/; a link between pages that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check-wheel: $(VENV)/.dev  ## sdist and wheel of HEAD: what is in them, each in an empty environment, the demo (3 minutes)
	bash tests/packaging/check_wheel.sh $(BIN)/python

check-examples: $(VENV)/.dev  ## every example in an environment with the extra that it names, no more (5 minutes)
	$(BIN)/python -m tests.packaging.check_examples $(ARGS)

check-bounds: $(VENV)/.dev  ## tests with the oldest versions that pyproject.toml allows, torch aside (5 minutes)
	$(BIN)/python -m tests.packaging.check_bounds

NEWCOMER = $(BIN)/python -m tests.packaging.newcomer.measure --environments .venv-newcomer

measure-newcomer: $(VENV)/.dev  ## from pip install to the first decision, with torchrun and three frameworks (8 minutes)
	$(NEWCOMER) --prepare
	$(NEWCOMER) --json docs/measurements/newcomer.json
	rm -rf .venv-newcomer

tables: $(VENV)/.lab $(VENV)/.test  ## what measurements came to, into README and docs (ARGS=--mixed for several commits)
	$(BIN)/python -m tests.measure.tables $(ARGS)

pictures: $(VENV)/.lab $(VENV)/.test  ## pictures of README and docs, of the same records
	$(BIN)/python -m tests.measure.pictures

check-tables: $(VENV)/.lab $(VENV)/.test  ## whether README and docs say what their records say
	$(BIN)/python -m tests.measure.tables --check

measure-demo: $(VENV)/.lab  ## the demo, its record kept for README; needs root for a real link (5 minutes)
	$(BIN)/gravac demo --json docs/measurements/demo.json $(ARGS)

measure-telemetry: $(VENV)/.test  ## what the sinks take of a step (1 minute)
	$(BIN)/python -m tests.telemetry.cost --json docs/measurements/telemetry.json

measure-multilevel: $(VENV)/.test  ## multi-level compression against direct, real shapes (2 minutes)
	$(BIN)/python -m tests.measure.multilevel --json docs/measurements/multilevel.json

measure-norms: $(VENV)/.test  ## what sums of squares cost that neither overflow nor vanish (1 minute)
	$(BIN)/python -m tests.measure.norms --json docs/measurements/norms.json $(ARGS)

measure-overhead: $(VENV)/.test  ## settled on dense against native DDP (2 minutes)
	$(BIN)/python -m tests.measure.overhead --json docs/measurements/overhead.json

measure-before-after: $(VENV)/.test  ## a step at BEFORE=<commit> against HEAD, each by its own driver, in turns (12 minutes)
	@test -n "$(BEFORE)" || { echo "measure-before-after: name a commit, such as BEFORE=HEAD~3"; exit 2; }
	$(BIN)/python -m tests.measure.before_after $(BEFORE) --json docs/measurements/before_after.json $(ARGS)

measure-size: $(VENV)/.test  ## lines of code by folder (ARGS="--against COMMIT")
	$(BIN)/python -m tests.measure.size $(ARGS)

measure-walk: $(VENV)/.test  ## functions that a compressed step enters, and calls upward (ARGS="--json FILE"; 1 minute)
	$(BIN)/python -m tests.measure.walk $(ARGS)

measure-steps: $(VENV)/.lab $(VENV)/.test  ## a step of each method where the link is free; needs root (6 minutes)
	$(BIN)/python -m tests.measure.step_times --json docs/measurements/step_times.json

measure-soak: $(VENV)/.test  ## long runs with random delays, every compressor (6 minutes)
	$(BIN)/python -m tests.measure.soak --json docs/measurements/soak.json

measure-chunks: $(VENV)/.test  ## chunked against plain top-k at equal bits (1 minute)
	$(BIN)/python -m tests.measure.chunks --json docs/measurements/chunks.json

measure-worth: $(VENV)/.test  ## what a compressed step is worth, every compressor (45 minutes)
	$(BIN)/python -m tests.measure.worth --json docs/measurements/worth.json

measure-outer-efficiency: $(VENV)/.lab $(VENV)/.test  ## what a step is worth where ranks exchange every H steps, in memory; resumable (3 hours)
	$(BIN)/python -m tests.measure.outer_efficiency $(ARGS)

measure-outer-memory: $(VENV)/.test  ## what outer steps would take of a GPU's and of CPU memory, counted without a GPU (1 minute)
	$(BIN)/python -m tests.measure.outer_memory --json docs/measurements/outer_memory.json

measure-outer-traffic: $(VENV)/.test  ## bytes of a round and of its fullest step, by fragments, in memory (1 minute)
	$(BIN)/python -m tests.measure.outer_traffic --json docs/measurements/outer_traffic.json

measure-outer-costs: $(VENV)/.lab $(VENV)/.test  ## what delay, unequal shares and bfloat16 anchors cost in steps, in memory; resumable (10 minutes)
	$(BIN)/python -m tests.measure.outer_costs $(ARGS)

measure-outer-delays: $(VENV)/.lab $(VENV)/.test  ## what exchanges behind steps cost in steps, in memory; resumable (30 minutes)
	$(BIN)/python -m tests.measure.outer_delays $(ARGS)
	$(BIN)/python -m tests.measure.outer_delays --json docs/measurements/outer_delays_four.json --ranks 4 $(ARGS)

measure-outer-ranks: $(VENV)/.lab $(VENV)/.test  ## what a step is worth among 4, 8 and 16 ranks, and the outer rate; in memory; resumable (80 minutes)
	$(BIN)/python -m tests.measure.outer_efficiency --json docs/measurements/outer_ranks.json --tasks charlm lstm \
		--ranks 4 8 --every 10 20 5 2 50 --sent dense --tune $(ARGS)
	$(BIN)/python -m tests.measure.outer_efficiency --json docs/measurements/outer_ranks.json --tasks denoise --ranks 4 8 --every 2 5 10 20 50 --sent dense
	$(BIN)/python -m tests.measure.outer_efficiency --json docs/measurements/outer_ranks.json --ranks 4 8 16 --every 10 --sent dense 'quantize(2)'
	$(BIN)/python -m tests.measure.outer_efficiency --json docs/measurements/outer_ranks.json --tasks charlm lstm --ranks 16 --every 5 --sent dense

measure-outer-long: $(VENV)/.lab $(VENV)/.test  ## what outer steps come to after 2000 steps, beside averaged gradients, in memory; resumable (15 minutes a seed)
	$(BIN)/python -m tests.measure.outer_long --draw docs/screenshots/outer_long.png $(ARGS)

measure-nanogpt: $(VENV)/.lab $(VENV)/.test  ## nanoGPT's train.py in NANOGPT=<clone>: native, hook, outer steps; resumable (45 minutes)
	@test -n "$(NANOGPT)" || { echo "measure-nanogpt: name a clone of github.com/karpathy/nanoGPT, such as NANOGPT=../nanoGPT"; exit 2; }
	$(BIN)/python -m tests.measure.nanogpt $(NANOGPT) $(ARGS)

measure-nanogpt-links: $(VENV)/.lab $(VENV)/.test  ## nanoGPT in NANOGPT=<clone> on 20 and 100 Mbit/s, every=(1, 100) against every=1; needs root; resumable (25 minutes)
	@test -n "$(NANOGPT)" || { echo "measure-nanogpt-links: name a clone of github.com/karpathy/nanoGPT, such as NANOGPT=../nanoGPT"; exit 2; }
	$(BIN)/python -m tests.measure.nanogpt_links $(NANOGPT) $(ARGS)

measure-native: $(VENV)/.lab $(VENV)/.test  ## a step settled on native, and with the hook kept, against DDP without gravac; resumable (40 minutes)
	$(BIN)/python -m tests.measure.native $(ARGS)

measure-fast-links: $(VENV)/.lab $(VENV)/.test  ## every=1 and every=(1, 100) against the best static method on fast links; needs root; resumable (75 minutes)
	$(BIN)/python -m tests.measure.fast_links $(ARGS)

measure-programs-links: $(VENV)/.lab $(VENV)/.test $(if $(EXAMPLES),$(REAL)/.real) environment-integrations  ## programs that nothing was tuned on, at 20 and 100 Mbit/s and unthrottled, against float16 and the hook; NANOGPT=<clone>, EXAMPLES=<clone>; needs root; resumable (5 hours)
	$(BIN)/python -m tests.measure.programs_links $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(if $(EXAMPLES),--examples $(EXAMPLES)) $(ARGS)

measure-slow-links: $(VENV)/.lab $(VENV)/.test  ## 5 and 20 Mbit/s: every=(1, 100) against the hook alone on the lab's three tasks; needs root; resumable (40 minutes)
	$(BIN)/python -m tests.measure.slow_links $(ARGS)

measure-changing-link: $(VENV)/.lab $(VENV)/.test  ## 1 Gbit/s, 20 Mbit/s, 1 Gbit/s: charlm, and nanoGPT in NANOGPT=<clone>; needs root; resumable (40 minutes)
	$(BIN)/python -m tests.measure.changing_link $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(ARGS)

measure-progress: $(VENV)/.lab $(VENV)/.test  ## what a step is worth by every way to run steps, on six programs, no clock; NANOGPT=<clone>; resumable (4 hours)
	$(BIN)/python -m tests.measure.progress $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(ARGS)

measure-switchback: $(VENV)/.lab $(VENV)/.test  ## what switchback trials tell of a step's worth, on six programs, no clock; NANOGPT=<clone>; resumable (75 minutes)
	$(BIN)/python -m tests.measure.switchback $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(ARGS)

measure-predictors: $(VENV)/.lab $(VENV)/.test  ## whether noise scale, gain, drift or alignment predict what a step is worth; NANOGPT=<clone>; resumable (15 minutes)
	$(BIN)/python -m tests.measure.predictors $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(ARGS)

measure-going-over: $(VENV)/.lab $(VENV)/.test  ## ranks that train apart at 5 and 20 Mbit/s: come together, evaluated, saved, resumed; needs root; resumable (8 minutes)
	$(BIN)/python -m tests.measure.going_over $(ARGS)

measure-ladder: $(VENV)/.lab $(VENV)/.test  ## a ladder against each of its members, at every wire ratio (8 minutes)
	$(BIN)/python -m tests.measure.ladder --json docs/measurements/ladder.json

LOWRANK = $(BIN)/gravac bench tta --link unthrottled --seeds 1 --json docs/measurements/lowrank.json \
	--methods fp32 'powersgd(16)@32' 'powersgd(8)@64' 'powersgd(4)@128' 'powersgd(2)@256'

measure-lowrank: $(VENV)/.lab  ## steps that low rank needs, by rank and by CF, three tasks; resumable (12 minutes)
	$(LOWRANK) powersgd@512 powersgd@256 powersgd@128 powersgd@64 --task denoise --scale 1 --budget 300 --limit 8
	$(LOWRANK) powersgd@64 powersgd@32 powersgd@16 powersgd@8 --task charlm --scale 0.4 --budget 200
	$(LOWRANK) --task lstm --scale 1 --budget 200

measure-links: $(VENV)/.test  ## emulated links: rate, bytes, schedules; needs root (7 minutes)
	$(BIN)/python -m tests.measure.links --json docs/measurements/links.json

TTA_METHODS := fp32 fp16 'torch-powersgd(1)' 'torch-powersgd(4)' 'torch-powersgd(8)' 'powersgd(4)@128' \
	'quantize(8)' 'quantize(4)' 'quantize(2)' 'quantize(1)' \
	topkc@10 topkc@100 topk@10 topk@100 'randomk(block=64)@10' thc 'topkc(values=quantize(1))@10' \
	gravac:topk gravac:topkc gravac:ladder@2-1000 goodput:ladder@2-1000
TTA = $(BIN)/gravac bench tta --link unthrottled 1gbit 100mbit 20mbit --methods $(TTA_METHODS) --factored \
	--json docs/measurements/tta.json --seeds 1 --first-seed

measure-tta: $(VENV)/.lab  ## every method on three tasks, four links, three seeds; needs root; resumable (2 hours)
	set -e; for seed in 0 1 2; do \
		$(TTA) $$seed --task charlm --scale 0.4 --budget 200; \
		$(TTA) $$seed --task lstm --scale 1 --budget 200; \
		$(TTA) $$seed --task denoise --scale 1 --budget 300 --limit 8; \
	done
	$(BIN)/gravac report docs/measurements/tta.json --out report --markdown docs/evidence/matrices.md

SEEDS := 0 1 2
LANGUAGE = $(INTEGRATIONS)/bin/python -m gravac bench tta --link 20mbit 100mbit --factored --times-each-seed \
	--methods fp16 'torch-powersgd(4)' 'torch-powersgd(8)' 'powersgd(4)@128' \
	'quantize(8)' 'quantize(4)' 'quantize(2)' 'quantize(1)' goodput:ladder@2-1000 \
	--json docs/measurements/language.json --seeds 1 --first-seed

measure-language: $(VENV)/.lab environment-integrations  ## GPT-2 and ModernBERT on two links, three seeds; needs root; resumable (1 hour)
	set -e; for seed in $(SEEDS); do $(LANGUAGE) $$seed --task gpt2 modernbert $(ARGS); done

OUTER_FIXED := 'outer(every=10):quantize(2)' 'outer(every=20):quantize(2)' 'outer(every=20):quantize(1)' 'outer(every=50):quantize(2)'
OUTER_ADAPTIVE := outer:ladder@2-1000 matched:outer:ladder@2-1000
OUTER_TASKS := '--task lstm' '--task charlm --scale 0.4' '--task denoise'
OUTER_CHANGING := 20mbit,10s:100mbit,20s:5mbit
OUTER_TTA = $(INTEGRATIONS)/bin/python -m gravac bench tta --seeds 1 --first-seed $$seed $$task $(ARGS)
OUTER_JSON ?= docs/measurements/outer_tta.json
OUTER_SHORT = $(OUTER_TTA) --budget 300 --json $(OUTER_JSON)

measure-outer-tta: $(VENV)/.lab $(INTEGRATIONS)/.torchft  ## outer steps, fixed, adaptive, shuffled, torchft's, on links of all kinds; needs root; resumable (some hours)
	set -e; for seed in $(SEEDS); do for task in $(OUTER_TASKS); do \
		$(OUTER_SHORT) --factored --link 20mbit 100mbit 5mbit --methods $(OUTER_FIXED) $(OUTER_ADAPTIVE); \
		$(OUTER_SHORT) --link $(OUTER_CHANGING) 20mbit/5mbit --methods $(OUTER_FIXED) $(OUTER_ADAPTIVE); \
		$(OUTER_SHORT) --factored --link 1gbit --methods outer:ladder@2-1000 goodput:ladder@2-1000; \
		$(OUTER_SHORT) --factored --link 100mbit 20mbit --limit 3 --methods 'torchft-localsgd(every=10)' 'torchft-diloco(every=10)' goodput:ladder@2-1000; \
	done; done

measure-outer-tta-four: $(VENV)/.lab environment-integrations  ## the same with four workers; needs root; resumable (20 minutes a seed)
	set -e; for seed in $(SEEDS); do for task in $(OUTER_TASKS); do \
		$(OUTER_TTA) --budget 300 --workers 4 --json docs/measurements/outer_tta_four.json --factored --link 20mbit 100mbit 5mbit \
			--methods 'outer(every=20):quantize(2)' outer:ladder@2-1000; \
	done; done

measure-outer-tta-long: $(VENV)/.lab environment-integrations  ## the same over 2000 steps; needs root; resumable (40 minutes a seed)
	set -e; for seed in $(SEEDS); do for task in $(OUTER_TASKS); do \
		$(OUTER_TTA) --budget 2000 --json docs/measurements/outer_tta_long.json --factored --link 20mbit 100mbit 5mbit --methods outer:ladder@2-1000; \
		$(OUTER_TTA) --budget 2000 --json docs/measurements/outer_tta_long.json --link $(OUTER_CHANGING) --methods $(OUTER_ADAPTIVE); \
	done; done

measure-judgement: $(VENV)/.lab $(VENV)/.test  ## the default against the best static method of each cell, five seeds; needs root (1 hour)
	$(BIN)/python -m tests.measure.judgement

measure-judgement-topk: $(VENV)/.lab $(VENV)/.test  ## the same of top-k against the best of top-k, 16 bit and dense; needs root (80 minutes)
	$(BIN)/python -m tests.measure.judgement --adaptive goodput:topk@10-1000 --among topk@10 topk@100 fp16 fp32 \
		--limit 20 --json docs/measurements/judgement_topk.json

measure-torch-ddp: $(VENV)/.lab $(VENV)/.test  ## torch's own DDP tests with gravac attached, in three modes (6 minutes)
	$(BIN)/python -m tests.torch_ddp --json docs/measurements/torch_ddp.json --page docs/evidence/torch-ddp-tests.md
	$(BIN)/python -m tests.torch_ddp --mode switching --json docs/measurements/torch_ddp_switching.json --page docs/evidence/torch-ddp-tests.md
	$(BIN)/python -m tests.torch_ddp --mode apart --json docs/measurements/torch_ddp_apart.json --page docs/evidence/torch-ddp-tests.md

measure-torch-fsdp: $(VENV)/.lab $(VENV)/.test  ## torch's own FSDP2 tests with gravac attached (SOURCES=PATH of a clone of pytorch v2.13.0; 20 minutes)
	$(BIN)/python -m tests.torch_fsdp $(or $(SOURCES),$(error SOURCES: give the path of a clone of pytorch v2.13.0)) --json docs/measurements/torch_fsdp.json
	$(BIN)/python -m tests.measure.tables

measure-switching: $(VENV)/.lab $(VENV)/.test  ## what a change of the compression factor sets training back, in memory (12 minutes)
	$(BIN)/python -m tests.measure.switching

measure-talk: $(VENV)/.lab $(VENV)/.test  ## the GraVAC paper's comparisons, like for like; needs root; resumable (1 hour)
	$(BIN)/python -m tests.measure.talk

measure-factored: $(VENV)/.lab $(VENV)/.test  ## six of the matrix's factored times against full runs; needs root (4 minutes)
	$(BIN)/python -m tests.measure.factored --json docs/measurements/factored.json

measure-compressors: $(VENV)/.test  ## speed of every compressor, 25 MiB, one thread (3 minutes)
	$(BIN)/python -m gravac bench compressors --json docs/measurements/compressors.json \
		--also 'randomk(block=64)'

measure-gpu: $(VENV)/.test  ## bits, waits, codecs, overlap, ranks on one GPU (10 minutes, needs a GPU)
	$(BIN)/python -m tests.measure.gpu --json docs/measurements/gpu.json $(ARGS)

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

environment: $(VENV)/.environment  ## all that lint, tests, kernels and docs need, in .venv

$(VENV)/.environment: $(VENV)/.base
	@echo "installing gravac[dev,docs,triton] into $(VENV)... (once)"
	@$(INSTALL) 'gravac[dev,docs,triton]'
	@$(BIN)/python -c 'import torch._dynamo, gravac.lab, torch.utils.tensorboard'  # compiled once, not in each process
	@touch $(addprefix $(VENV)/.,dev docs lab test triton environment)  # lab and test are parts of dev

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

$(REAL)/.real: $(VENV)/.lab $(VENV)/.test
	@echo "installing what minGPT-ddp and nanoGPT import into $(REAL)... (once, a minute)"
	@$(BIN)/python -m venv --clear $(REAL)
	@echo "import site; site.addsitedir('$$($(BIN)/python $(PACKAGES))')" \
		>"$$($(REAL)/bin/python $(PACKAGES))/packages_of_venv.pth"
	@$(REAL)/bin/python $(PIP) hydra-core==1.3.8 boto3==1.44.8 requests==2.34.2
	@touch $@

$(INTEGRATIONS)/.trackers $(INTEGRATIONS)/.torchft $(INTEGRATIONS)/.ray: $(INTEGRATIONS)/.%: $(INTEGRATIONS)/.integrations
	@echo "installing gravac[$*] into $(INTEGRATIONS)... (once, a minute)"
	@$(INTEGRATIONS)/bin/python $(PIP) -c constraints-integrations.txt 'gravac[$*]'
	@touch $@

# targets share .venv: never two installations at once
.NOTPARALLEL:
.PRECIOUS: $(VENV)/.base $(VENV)/.lab $(VENV)/.test $(VENV)/.triton $(VENV)/.dev $(VENV)/.docs
