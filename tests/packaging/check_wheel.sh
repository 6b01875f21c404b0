#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
# Build a wheel; install it in empty environments without and with its lab extra; run what a user would.
set -euo pipefail
python=$1
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --outdir "$work/dist" . >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
wheel=$(ls "$work"/dist/*.whl)
pip() { "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$here/constraints.txt" "$@"; }
"$python" -m venv "$work/venv"
cd "$work"
pip torch
pip "$wheel"
venv/bin/python - <<'PY'
import gravac
assert {"goodput", "gravac", "gravac-paper"} <= set(gravac.policy_names()), gravac.policy_names()
gravac.AdaptiveCompressor.from_policy("gravac").close()
print("without extras: import and policies work, from", gravac.__file__)
PY
venv/bin/python -m torch.distributed.run --nproc-per-node 2 "$here/examples/ddp_topk.py" --steps 60
if venv/bin/gravac demo --seconds 1; then echo "the demo must ask for its extra"; exit 1; fi
pip "$wheel[lab]"
venv/bin/gravac demo --seconds 10
echo "the wheel works"
