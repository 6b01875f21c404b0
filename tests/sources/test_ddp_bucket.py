# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A bucket in flight: DDP gets it when all of its gradients are averaged, after a wait for what several groups left."""

import torch

from gravac.sources.ddp_bucket import BucketInFlight


def test_a_bucket_of_several_groups_waits_once_for_the_exchanges_that_have_ended() -> None:
    buffer, events = torch.zeros(3), []
    bucket = BucketInFlight(buffer, ["a", "b", "c"], lambda: events.append("wait"))
    bucket.future.add_done_callback(lambda _: events.append("done"))
    bucket.mark_averaged(["a", "of another bucket"])
    assert not bucket.future.done()
    bucket.mark_averaged(["b", "c"])
    assert events == ["wait", "done"]
    assert bucket.future.value() is buffer


def test_a_bucket_of_one_group_does_not_wait() -> None:
    waits: list[str] = []
    bucket = BucketInFlight(torch.zeros(2), ["a", "b"], lambda: waits.append("wait"))
    bucket.mark_averaged(["b", "a"])
    assert bucket.future.done()
    assert not waits
