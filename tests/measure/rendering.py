# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fill the templates of ``tests/measure/templates``: they hold words, and functions beside them compute the numbers.

``tables/`` has blocks that stand between marks in a document, ``sentences/`` what a document's prose must say.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

Estimate = tuple[float, float, float]
"""A mean, and the bounds of its 95 % interval."""


def digits(number: float, places: int = 2) -> str:
    """Return a number with so many digits after the point."""
    return f"{number:.{places}f}"


def significant(number: float, count: int = 6) -> str:
    """Return a number with at most so many significant digits.

    Example:
        >>> significant(10.6667, 4), significant(10.0)
        ('10.67', '10')
    """
    return f"{number:.{count}g}"


def thousands(number: int) -> str:
    """Return a count with a comma between thousands."""
    return f"{number:,}"


def millions(number: float, places: int = 2) -> str:
    """Return a count in millions, with so many digits after the point."""
    return digits(number / 1e6, places)


def percent(fraction: float, places: int = 0) -> str:
    """Return a fraction in percent, without its sign.

    Example:
        >>> percent(-0.07), percent(0.0058, 2)
        ('7', '0.58')
    """
    return digits(abs(100 * fraction), places)


def interval(estimate: Estimate, places: int = 2) -> str:
    """Return the bounds of an estimate.

    Example:
        >>> interval((1.0, 0.9, 1.1))
        '0.90 to 1.10'
    """
    return " to ".join(digits(bound, places) for bound in estimate[1:])


def with_interval(estimate: Estimate, places: int = 2) -> str:
    """Return an estimate's mean and bounds.

    Example:
        >>> with_interval((1.0, 0.9, 1.1))
        '1.00 [0.90-1.10]'
    """
    mean, low, high = (digits(number, places) for number in estimate)
    return f"{mean} [{low}-{high}]"


def yes_or_no(true: bool) -> str:
    """Return a word; the one that nobody wishes for is easy to see."""
    return "yes" if true else "NO"


ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(),  # of HTML, which no template is
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {
    filter_.__name__: filter_
    for filter_ in (digits, significant, thousands, millions, percent, interval, with_interval, yes_or_no)
}


def render(template: str, **numbers: Any) -> str:
    """Return a template's text with numbers in it.

    Raises:
        jinja2.UndefinedError: the template asks for a number that is missing.
    """
    return ENVIRONMENT.get_template(f"{template}.md").render(numbers).strip()


def sentences(template: str, **numbers: Any) -> Sequence[str]:
    """Return the paragraphs of a template, each of which must stand in its document."""
    return re.split(r"\n\s*\n", render(f"sentences/{template}", **numbers))
