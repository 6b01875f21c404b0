# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by the clock.

Read it in this order: ``rates`` (what a rate is), ``owner`` (whose a namespace is), ``links`` (workers in network
namespaces), ``text`` and ``charlm`` (what is trained), ``methods`` (how gradients are exchanged), ``worker`` (one rank
of one run), ``run`` (all ranks of one run, seen from the parent), ``outcome`` (what a run showed), ``display`` and
``demo``; ``sweep`` finds the learning rate.
"""
