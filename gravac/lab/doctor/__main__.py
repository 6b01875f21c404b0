# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that ``check_here`` starts."""

import sys
from pathlib import Path

from gravac.lab import local_ranks
from gravac.lab.doctor.ranks import check

folder, workers, rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with local_ranks.joined(folder, rank, workers):
    found = check(loopback=True)
    if rank == 0:
        (folder / "check.json").write_text(found.model_dump_json())
