# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Links are read from words and written back; a wrong one is refused with its words and the remedy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gravac.lab.links.link import (
    MAX_DELAY_MS,
    MAX_LOSS_PERCENT,
    MIN_IMPAIRMENT,
    SHORTEST_PHASE_SECONDS,
    Link,
    Phase,
    parse_link,
)
from gravac.lab.links.rates import HIGHEST_RATE_BPS, LOWEST_RATE_BPS

pytestmark = pytest.mark.timeout(60)

RATES = st.none() | st.floats(LOWEST_RATE_BPS, HIGHEST_RATE_BPS) | st.integers(64, 10**8).map(lambda kbit: kbit * 1e3)


@st.composite
def links(draw: st.DrawFn) -> Link:
    waits = draw(st.lists(st.floats(SHORTEST_PHASE_SECONDS + 0.001, 1e4), max_size=4))
    times = [0.0]
    for wait in waits:
        times.append(times[-1] + wait)
    return Link(
        tuple(Phase(time, draw(RATES), draw(RATES)) for time in times),
        draw(st.just(0.0) | st.floats(MIN_IMPAIRMENT, MAX_DELAY_MS)),
        draw(st.just(0.0) | st.floats(MIN_IMPAIRMENT, MAX_LOSS_PERCENT)),
        tuple((rank, Phase(0.0, draw(RATES), draw(RATES))) for rank in sorted(draw(st.sets(st.integers(0, 7))))),
    )


@given(links())
def test_words_give_the_link_back(link: Link) -> None:
    assert parse_link(str(link)) == link


@given(links())
def test_words_are_canonical(link: Link) -> None:
    words = str(link)
    assert str(parse_link(words)) == words
    assert str(parse_link(f" {words.upper().replace(',', ' , ').replace(':', ': ')} ")) == words


@given(links(), st.floats(0, 1e5))
def test_a_phase_holds_from_its_time_on(link: Link, seconds: float) -> None:
    phase = link.phase_at(seconds)
    following = [later.at_seconds for later in link.phases if later.at_seconds > phase.at_seconds]
    assert phase.at_seconds <= seconds < min(following, default=float("inf"))


@given(links())
def test_nothing_is_slower_than_the_slowest(link: Link) -> None:
    phases = [*link.phases, *(phase for _, phase in link.of_ranks)]
    rates = [rate for phase in phases for rate in (phase.down, phase.up) if rate is not None]
    assert link.lowest_rate_bps == (min(rates) if rates else None)


@pytest.mark.parametrize(
    ("words", "link", "canonical"),
    [
        ("100mbit", Link((Phase(0, 1e8, 1e8),)), "100mbit"),
        ("2e7", Link((Phase(0, 2e7, 2e7),)), "20mbit"),
        ("50mbit/10mbit", Link((Phase(0, 50e6, 10e6),)), "50mbit/10mbit"),
        ("unthrottled", Link((Phase(0, None, None),)), "unthrottled"),
        ("Unthrottled/10Mbit", Link((Phase(0, None, 10e6),)), "unthrottled/10mbit"),
        (
            "1000mbit, 30s: 50mbit/10mbit, 60s:1gbit",
            Link((Phase(0, 1e9, 1e9), Phase(30, 50e6, 10e6), Phase(60, 1e9, 1e9))),
            "1gbit,30s:50mbit/10mbit,60s:1gbit",
        ),
        (
            "100mbit, rank1: 100mbit/20mbit +20ms",
            Link((Phase(0, 1e8, 1e8),), 20, of_ranks=((1, Phase(0, 1e8, 20e6)),)),
            "100mbit,rank1:100mbit/20mbit+20ms",
        ),
        (
            "1gbit,rank2:5mbit,3s:5mbit,rank0:unthrottled",
            Link(
                (Phase(0, 1e9, 1e9), Phase(3, 5e6, 5e6)), of_ranks=((0, Phase(0, None, None)), (2, Phase(0, 5e6, 5e6)))
            ),
            "1gbit,3s:5mbit,rank0:unthrottled,rank2:5mbit",
        ),
        ("100mbit+20ms+0.1%", Link((Phase(0, 1e8, 1e8),), 20, 0.1), "100mbit+20ms+0.1%"),
        ("100mbit + 0.1% + 20 ms", Link((Phase(0, 1e8, 1e8),), 20, 0.1), "100mbit+20ms+0.1%"),
        ("1gbit,2.5s:1mbit+1%", Link((Phase(0, 1e9, 1e9), Phase(2.5, 1e6, 1e6)), 0, 1), "1gbit,2.5s:1mbit+1%"),
    ],
)
def test_link_is_read_from_words(words: str, link: Link, canonical: str) -> None:
    assert parse_link(words) == link
    assert str(link) == canonical


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("", "'' is not a rate"),
        ("fast", "'fast' is not a rate"),
        ("100mbit/", "'' is not a rate"),
        ("50mbit/10mbit/5mbit", "is not a rate"),
        ("10", "outside 64 kbit/s to 100 Gbit/s"),
        ("30s:50mbit", "must begin with the rates that hold from the start"),
        ("1gbit,50mbit", "does not say when"),
        ("1gbit,30:50mbit", "does not say when"),
        ("1gbit,-3s:50mbit", "does not say when"),
        ("1gbit,30s:50mbit,20s:1gbit", "has a phase at 20 s after a phase at 30 s"),
        ("1gbit,0.1s:50mbit", "has a phase at 0.1 s after a phase at 0 s"),
        ("1gbit,1000000s:50mbit", "up to 86400 s"),
        ("100mbit+20", "not a delay or a loss"),
        ("100mbit+20s", "not a delay or a loss"),
        ("100mbit+20ms+30ms", "is a second delay"),
        ("100mbit+-1ms", "not a delay or a loss"),
        ("100mbit+99%", "a loss in percent outside"),
        ("100mbit+20000ms", "a delay in milliseconds outside"),
    ],
)
def test_wrong_link_names_words_and_remedy(words: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="such as") as refused:
        parse_link(words)
    assert wrong in str(refused.value)
    assert repr(words) in str(refused.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_wrong_figures_are_refused_without_words_too(value: float) -> None:
    good = Phase(0, 1e8, 1e8)
    for make in (
        lambda: Link((Phase(0, value, 1e8),)),
        lambda: Link((good, Phase(value, 1e8, 1e8))),
        lambda: Link((good,), delay_ms=value),
        lambda: Link((good,), loss_percent=value),
        lambda: Link((Phase(1, 1e8, 1e8),)),
        lambda: Link(()),
    ):
        with pytest.raises(ValueError, match="such as"):
            make()
