# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Rates are read from words, and a wrong one is refused with its value and the remedy."""

import pytest

from gravac.lab.links.rates import format_rate, parse_rate

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 1e8),
        ("1gbit", 1e9),
        ("20Mbit", 2e7),
        ("1.5 gbit", 1.5e9),
        ("64kbit", 64e3),
        ("100000000", 1e8),
        ("2e7", 2e7),
        ("250000bit", 250e3),
        (1e8, 1e8),
    ],
)
def test_rate_is_read_in_bits_per_second(text: str | float, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "100mb", "-5mbit", "", "mbit", "0", "10", "1e30", "nan", "inf"])
def test_wrong_rate_names_value_and_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="100mbit") as refused:
        parse_rate(text)
    assert repr(text) in str(refused.value)


def test_rates_are_written_for_people() -> None:
    assert [format_rate(rate) for rate in (1e9, 1.5e9, 1e8, 64e3)] == [
        "1 Gbit/s",
        "1.5 Gbit/s",
        "100 Mbit/s",
        "64 kbit/s",
    ]
