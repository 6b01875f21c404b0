#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
# Build sdist and wheel from a clone of the commit that is checked out; look into them; install each in an empty
# environment; run what a user would, without and with the lab extra.
set -euo pipefail
python=$(realpath --no-symlinks "$1")  # commands below run in other folders
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() { "$python" -m build "$@" >>"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }; }
git clone --quiet "$here" "$work/checkout"
build --outdir "$work/dist" "$work/checkout" # the wheel is made of the sdist here, and of the checkout in the next line
build --wheel --outdir "$work/direct" "$work/checkout"
sdist=$(ls "$work"/dist/*.tar.gz) wheel=$(ls "$work"/dist/*.whl)
cmp "$wheel" "$work"/direct/*.whl
"$python" "$here/tests/packaging/contents.py" "$work/checkout" "$sdist" "$wheel"

install() { # a distribution into an empty environment, with torch
    "$python" -m venv --clear "$work/venv"
    pip torch
    pip "$1"
}
pip() { "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$here/constraints.txt" "$@"; }
cd "$work"
for distribution in "$sdist" "$wheel"; do
    install "$distribution"
    venv/bin/gravac --version
    venv/bin/gravac doctor
done
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
echo "sdist and wheel work"
