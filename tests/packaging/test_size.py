# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The count of code lines: what is counted, what is not, and what ``--check`` refuses."""

import pytest

from tests.measure import size

SOURCE = '''# a comment
"""What the file is for.

Example:
    >>> 1
    1
"""

import os  # counted

LIMIT = 3
"""What the limit limits,
in two lines."""

TEXT = """not documentation:
it has a name
"""


class Public:
    """Of two methods."""

    def method(self) -> str:
        """Say so."""
        return "said"  # a string that does not stand alone

    def _hidden(self) -> None: "documentation on a line of code"


def bare(
    one: int,
) -> int:

    return os.cpu_count() or one
'''


def long_function(lines: int) -> str:
    return "def one():\n" + '    """What\n\n    it is.\n    """\n' + "    pass\n" * (lines - 1)


def test_code_lines_are_those_with_anything_but_blanks_comments_and_documentation() -> None:
    counted = [SOURCE.splitlines()[number - 1] for number in sorted(size.code_lines(SOURCE))]
    assert counted == [
        "import os  # counted",
        "LIMIT = 3",
        'TEXT = """not documentation:',
        "it has a name",
        '"""',
        "class Public:",
        "    def method(self) -> str:",
        '        return "said"  # a string that does not stand alone',
        '    def _hidden(self) -> None: "documentation on a line of code"',
        "def bare(",
        "    one: int,",
        ") -> int:",
        "    return os.cpu_count() or one",
    ]


def test_public_names_docstrings_and_examples_are_counted() -> None:
    counts = size.size(SOURCE)
    assert (counts.functions, counts.public, counts.documented, counts.examples) == (3, 4, 3, 1)


@pytest.mark.parametrize(("lines", "long"), [(size.LONG, 0), (size.LONG + 1, 1)])
def test_a_function_is_long_by_its_lines_without_the_docstring(lines: int, long: int) -> None:
    assert size.size(long_function(lines)).long == long


def test_the_total_is_without_the_lab() -> None:
    sources = {"gravac/a.py": "a = 1\n", "gravac/core/b.py": "b = 1\nc = 2\n", "gravac/lab/tasks/d.py": "d = 1\n"}
    folders = size.by_folder(sources)
    assert {name: counts.code for name, counts in folders.items()} == {"(top)": 1, "core": 2, "lab": 1}
    assert size.total(folders).code == 3


def test_both_sides_and_their_difference_stand_beside_each_other() -> None:
    before, now = {"gravac/a.py": "a = 1\nb = 2\nc = 3\n"}, {"gravac/core/a.py": "a = 1\n"}
    lines = [line.split() for line in size.table(now, before).splitlines()]
    assert ["(top)", "3", "0", "-3"] in lines
    assert ["core", "0", "1", "+1"] in lines
    assert ["total", "without", "lab", "3", "1", "-2"] in lines


def test_the_package_here_is_counted() -> None:
    sources = size.here()
    assert "gravac/adaptive.py" in sources
    assert size.total(size.by_folder(sources)).code > 1000
    assert size.longest(sources)[0][0] >= size.longest(sources)[-1][0]
