# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link's phases are applied when they are due and training runs, in order, and no longer than it runs."""

import threading

import pytest

from gravac.lab.links.link import Phase, parse_link
from gravac.lab.links.network import EmulatedNetwork, LinkError
from gravac.lab.links.schedule import Schedule

HUNG = 120.0
"""Seconds after which a test gives up on what should have happened; no test passes by waiting for so long."""


class Recorder(EmulatedNetwork):
    """A network that only notes what it is asked for, and tells who waits for it."""

    def __init__(self, words: str, failing: bool = False) -> None:
        super().__init__(2, parse_link(words))
        self.asked: list[Phase] = []
        self.failing = failing
        self._news = threading.Condition()

    def apply(self, phase: Phase) -> None:
        with self._news:
            self.asked.append(phase)
            self._news.notify_all()
        if self.failing and len(self.asked) > 1:
            raise LinkError("the link is gone")

    def until(self, phases: int) -> None:
        """Wait until so many were asked for."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.asked) >= phases, HUNG)


def test_a_phase_is_in_force_no_sooner_than_it_is_due() -> None:
    network = Recorder("1gbit,0.5s:50mbit,1s:1gbit")
    with Schedule(network) as schedule:
        schedule.follow()
        network.until(3)
    assert network.asked == list(network.link.phases)
    assert [change.due_s for change in schedule.changes] == [0.5, 1]
    assert all(change.applied_s >= change.due_s for change in schedule.changes)


def test_schedule_begins_anew_with_each_run_and_ends_with_it() -> None:
    network = Recorder("1gbit,0.5s:50mbit,3600s:1gbit")
    for run in (1, 2):
        with Schedule(network) as schedule:
            schedule.follow()
            network.until(2 * run)
            schedule.follow()  # no second time
        assert len(schedule.changes) == 1
    assert network.asked == [*network.link.phases[:2]] * 2


def test_schedule_that_was_never_started_applies_the_first_phase_only() -> None:
    network = Recorder("1gbit,0.5s:50mbit")
    with Schedule(network) as schedule:
        assert "gravac-schedule" not in [thread.name for thread in threading.enumerate()], "something applies the next"
    assert network.asked == [network.link.phases[0]]
    assert not schedule.changes


def test_error_in_a_schedule_is_raised_where_its_block_ends_but_hides_no_other() -> None:
    first, second = (Recorder("1gbit,0.5s:50mbit", failing=True) for _ in range(2))
    with pytest.raises(LinkError, match="the link is gone"), Schedule(first) as schedule:
        schedule.follow()
        first.until(2)
    with pytest.raises(KeyboardInterrupt), Schedule(second) as schedule:
        schedule.follow()
        second.until(2)
        raise KeyboardInterrupt
