# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The parts that all report pages have in common: the style sheet, and the section on how to read the page."""

from __future__ import annotations

from gravac.lab.links.link import PACED
from gravac.lab.report.numbers import BASELINE, LIMIT_LINK, LIMIT_METHOD

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --pale: #5c5c5c; --paper: #ffffff; --line: #d5d5d5;
  --band: #f4f4f2; --mark: #fff3d6; --link: #00558c; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --pale: #a8a8a8; --paper: #181818; --line: #444444;
  --band: #242424; --mark: #4a3a12; --link: #7cc4f2; } }
body { margin: 0 auto; max-width: 1180px; padding: 1rem 1.5rem 4rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.3rem; margin-top: 3rem;
  border-top: 1px solid var(--line); padding-top: 1rem; } h3 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
a { color: var(--link); } .pale { color: var(--pale); } .verdict { font-size: 1.1rem; }
.paced { background: var(--mark); padding: 0 .35em; border-radius: 3px; font-size: .85em; white-space: nowrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .84rem; margin: .6rem 0; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; vertical-align: bottom; } thead th { border-bottom: 2px solid var(--line); }
tbody th { vertical-align: top; white-space: nowrap; } td { white-space: nowrap; } td.text { white-space: normal; }
th:first-child, td.text, th.text { text-align: left; } td small, th small { color: var(--pale); display: block; }
td small.note { white-space: normal; max-width: 8rem; margin-left: auto; }
caption { text-align: left; color: var(--pale); padding-bottom: .3rem; }
tr.adaptive, td.adaptive { background: var(--band); } tr.adaptive th { font-weight: 700; }
.look { font-size: .95rem; } .look td { text-align: left; min-width: 11rem; white-space: normal; }
.look strong { display: block; }
.range { white-space: nowrap; } figure { margin: 1rem 0; }
img { max-width: 100%; width: 860px; height: auto; background: white; display: block; }
figcaption { color: var(--pale); font-size: .88rem; max-width: 860px; } dt { font-weight: 600; margin-top: .6rem; }
dd { margin: 0 0 0 1.2rem; max-width: 50rem; } summary { cursor: pointer; color: var(--link); }
@media print { body { max-width: none; } h2 { break-before: page; } figure, tr { break-inside: avoid; } }
"""

HOW_TO_READ = f"""<section><h2 id="how-to-read">How to read this</h2>
<p>Several workers train one model together. After every step they exchange gradients over a network, and training waits
when that takes longer than computing. Compressed gradients travel faster but may need more steps. What counts is the
time until the model is good enough.</p>
<dl>
<dt>TTA, time to target (time to accuracy)</dt><dd>Training time, without evaluation, until the metric first reached the
target. A time after <b>&gt;</b> belongs to runs that had not reached it when they ended: it is what they had spent by
then. The table shows the median over seeds, and below it the least and the most.</dd>
<dt>The limit</dt><dd>The median TTA of {LIMIT_METHOD} on an {LIMIT_LINK} link: the same task, scale and
number of workers with a network that costs next to nothing. No method can be expected to be much below 1 times the
limit; 2 means that half of the time goes to the network, to compressing, or to steps that compression added.</dd>
<dt>Speed over {BASELINE}</dt><dd>TTA of {BASELINE} on the same link, divided by the method's own, for each seed; then
the median, least and most. {BASELINE} is what everybody has without gravac. When the range contains 1, seeds disagree
about which is faster: the difference lies inside the spread.</dd>
<dt>Spread</dt><dd>(most - least) / median over the seeds. Above 10 % the page asks for more seeds.</dd>
<dt>Efficiency</dt><dd>Samples a second, divided by the number of workers times what one worker alone does. It knows
nothing of how good the steps are.</dd>
<dt>Wire ratio</dt><dd>Bytes that fp32 sends in a step (a dense ring all-reduce), divided by what the method sends. It
counts what really travels, indices and scales included, and is therefore less than the CF for sparse methods.</dd>
<dt>CF, compression factor</dt><dd>What the compressor was asked for, in its own measure: 1 is dense float32, 2 is 16
bit; for top-k 10 keeps a tenth of the values, for a quantizer it is 32 / bits, for a ladder the wire ratio of a large
tensor. So it compares no two compressors: the wire ratio does. An adaptive method changes it while training.</dd>
<dt>Gain</dt><dd>The share of the gradient's energy (its squared norm) that is sent: 1 - squared error / squared norm.
1 means that nothing was lost. Methods that are not gravac's own do not report it.</dd>
<dt>Adaptive</dt><dd>A controller decides from gain and speed how much to compress, and whether to; its decisions are
drawn and listed with their reasons.</dd>
<dt>Compress, exchange, exposed</dt><dd>Compressing and exchanging overlap with backward's computation. Exposed is what
the exchange still adds to the step.</dd>
<dt id="factored">† Factored</dt><dd>The run was not made on this link. Steps to the target come from a run of the same
method on another link, the time of a step from a short run on this one; TTA is their product. An adaptive method might
have decided otherwise on this link.</dd>
<dt>Paced ({PACED})</dt><dd>There was no limited network: the exchange itself waited as long as the link's rate implies.
Latency, lost packets and other traffic are not in it.</dd>
</dl></section>"""
