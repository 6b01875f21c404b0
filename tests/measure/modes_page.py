# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sections of ``docs/evidence/modes.md``: what the three ways to run a step were measured to cost and to bring.

A section is appended by ``make tables`` once there is a record.
"""

from collections.abc import Callable

from tests.measure import changing_link, fast_links, going_over, nanogpt_links, native, slow_links
from tests.measure.published import rows

NATIVE = """## Settled on native: `make measure-native`

Four models of the same weights train by turns in one pair of processes over gloo, on loopback without a limit: two in
DDP without gravac, one with gravac settled on native steps, one with the hook kept and settled on dense float32. A
cycle is a block of steps of each, then the blocks in reverse order. The first steps of a block are not timed. Step
times are those of both ranks, mean; over native's: geometric mean over cycles, with its 95 % bootstrap interval.
*Native again* is what the machine's noise comes to: both models are native. By medians, a cycle's median step counts
and not the mean, which has the exchange at a stretch's end too.

<!-- table native: begin -->

<!-- table native: end -->
"""

FAST_LINKS = """## On fast links: `make measure-fast-links`

A cell is a task on a link of 1 Gbit/s, or on one without a limit. In each cell either setting runs against the cell's
best static method, with the same seed, in one session, in random order; each has a run of that method of its own. The
best static method is the fastest on two other seeds of float32, torch's float16 hook and the two best compressed
methods of `make measure-tta`. Times are those to native's loss after 80 % of its steps. A cell's interval is
Student's over its pairs; over all cells it is from a bootstrap over cells and seeds at once. *Its steps*: the mode of
the setting's steps.

<!-- table fast_links: begin -->

<!-- table fast_links: end -->
"""

SLOW_LINKS = """## On slow links: `make measure-slow-links`

`every=(1, 100)` against the hook alone (`native=False`) on links of 20 and 5 Mbit/s, on which the exchange takes over
half of the hook's steps. Both train in one session, with the same seed, in random order. Times are those to native's
loss after 80 % of its steps. The interval over all cells is from a bootstrap over cells and seeds at once. *Its steps*:
the mode of the steps of `every=(1, 100)`.

<!-- table slow_links: begin -->

<!-- table slow_links: end -->
"""

CHANGING = """## A link that changes: `make measure-changing-link NANOGPT=<clone>`

The link has 1 Gbit/s for the first third of native's time, 20 Mbit/s for the second and 1 Gbit/s for the rest. Times
are those to native's loss after 80 % of its steps, with geometric means over seeds and Student's 95 % interval; what
did not reach the loss counts with all the time that it had. The hook is `native=False`, outer steps have `every=10`.
The best fixed method is the one of native, hook and outer
steps whose geometric mean over all seeds is the lowest.

<!-- table changing_link: begin -->

<!-- table changing_link: end -->

What changes of mode took on rank 0, exchanges included:

<!-- table changing_link_changes: begin -->

<!-- table changing_link_changes: end -->
"""

GOING_OVER = """## Going over: `make measure-going-over`

Two ranks train a small `charlm` with `every=10` on slow links. They are evaluated and saved in the middle of rounds,
`detach` makes them equal, and they train on in native steps.

<!-- table going_over: begin -->

<!-- table going_over: end -->

In a second run a script changes the mode in all six ways. The table has for each change the seconds that it took on
rank 0, the bytes that rank 0's network interface sent meanwhile (headers included), and the bytes of all tensors that
Python holds after the step. In every mode these are four times the bytes of the weights at least: the weights, their
gradients, and AdamW's two moments. The anchor comes on top while ranks train apart, and residuals in the hook.

<!-- table going_over_changes: begin -->

<!-- table going_over_changes: end -->
"""

NANOGPT = """## nanoGPT on slow links: `make measure-nanogpt-links NANOGPT=<clone>`

nanoGPT's `train.py` with the configuration of [the program that nothing was tuned
on](outer.md#a-program-that-nothing-was-tuned-on), on emulated links. Its learning rate decays over 1000 steps; the
loss to reach is what native has after 80 % of these. Seconds are training's alone. Geometric mean of all ratios, with
Student's 95 % interval.

<!-- table nanogpt_links: begin -->

<!-- table nanogpt_links: end -->
"""

SECTIONS = {
    "native": NATIVE,
    "fast_links": FAST_LINKS,
    "slow_links": SLOW_LINKS,
    "changing_link": CHANGING,
    "changing_link_changes": CHANGING,
    "going_over": GOING_OVER,
    "going_over_changes": GOING_OVER,
    "nanogpt_links": NANOGPT,
}
"""Text with a table's marks, by the table's name."""

TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "native": ("native", lambda: native.table(rows("native"))),
    "fast_links": ("fast_links", lambda: fast_links.table(rows("fast_links"))),
    "slow_links": ("slow_links", lambda: slow_links.table(rows("slow_links"))),
    "changing_link": ("changing_link", lambda: changing_link.table(rows("changing_link"))),
    "changing_link_changes": ("changing_link", lambda: changing_link.changes_table(rows("changing_link"))),
    "going_over": ("going_over", lambda: going_over.held_table(rows("going_over"))),
    "going_over_changes": ("going_over", lambda: going_over.changes_table(rows("going_over"))),
    "nanogpt_links": ("nanogpt_links", lambda: nanogpt_links.table(rows("nanogpt_links"))),
}
"""A table's record, and what makes Markdown of the record."""
