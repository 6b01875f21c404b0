# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A slow sink on a thread of its own delays nobody, takes records in order, and is open about what it dropped."""

import threading
from typing import Any

import pytest

from gravac import SettingsError
from gravac.telemetry import BackgroundSink, CSVSink, EndRecord, Record

HUNG = 120.0


class Slow:
    """Takes records only while its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.taken: list[Record] = []
        self.closed = threading.Event()

    def __call__(self, record: Record) -> None:
        self.entered.set()
        assert self.gate.wait(HUNG)
        self.taken.append(record)

    def close(self) -> None:
        self.closed.set()


def records(number: int) -> list[Record]:
    return [EndRecord(step, {}) for step in range(number)]


def test_a_sink_that_blocks_does_not_block_whoever_hands_records_over() -> None:
    slow, given = Slow(), records(5)
    sink = BackgroundSink(slow, seconds=HUNG)
    for record in given:
        sink(record)
    assert slow.taken == []
    slow.gate.set()
    sink.close()
    assert slow.taken == given
    assert slow.closed.is_set()
    sink.close()


def test_records_that_find_no_room_are_dropped_and_counted_and_that_is_said_once() -> None:
    slow = Slow()
    sink = BackgroundSink(slow, room=2, seconds=0.05)
    given = records(6)
    sink(given[0])
    assert slow.entered.wait(HUNG)  # it holds the first, and two may wait
    for record in given[1:]:
        sink(record)
    assert sink.dropped == 3
    with pytest.warns(RuntimeWarning, match="was too slow: 5 records were dropped") as seen:
        sink.close()
    assert len(seen) == 1
    slow.gate.set()


def test_a_sink_that_fails_in_the_background_gets_no_more_and_is_closed() -> None:
    closed = threading.Event()

    class Broken:
        def __call__(self, record: Any) -> None:
            raise OSError("no space left")

        def close(self) -> None:
            closed.set()

    def fails() -> None:
        sink = BackgroundSink(Broken(), seconds=HUNG)
        sink(records(1)[0])
        assert closed.wait(HUNG)
        sink.close()

    with pytest.warns(RuntimeWarning, match="failed and gets no more records: OSError"):
        fails()


@pytest.mark.parametrize("wrong", [{"room": 0}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        BackgroundSink(lambda record: None, **wrong)


def test_a_csv_file_on_a_full_disk_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match=r"path: cannot write to '/dev/full' .No space left on device."):
        CSVSink("/dev/full")
