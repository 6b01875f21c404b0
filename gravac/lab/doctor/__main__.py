# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs one of the ranks that ``check_here`` starts: takes part in the check, and on rank 0 writes ``check.json``."""

import sys
from pathlib import Path

from gravac.lab import local_ranks
from gravac.lab.doctor.ranks import check
from gravac.lab.mesh import parse_mesh

folder, workers, rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[-1])
mesh = parse_mesh(sys.argv[3]) if len(sys.argv) > 4 else None
with local_ranks.joined_group(folder, rank, workers):
    result = check(loopback=True, mesh=mesh)
    if rank == 0:
        (folder / "check.json").write_text(result.model_dump_json())
