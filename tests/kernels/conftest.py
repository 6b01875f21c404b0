# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Of kernels nothing is collected but tests: without triton the rest cannot be imported. Its interpreter is sped up."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernels import DEVICE, INSTALLED

collect_ignore = ["compiled.py"]


@pytest.fixture(scope="package", autouse=True)
def functions_are_not_patched_again() -> Iterator[None]:
    """Triton's interpreter replaces its whole language at every call of a function, also at those of a kernel's.

    There it is replaced already: nothing comes of it but two fifths of these tests' time.
    """
    if not INSTALLED or DEVICE != "cpu":
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    def once(function: Any, patch: Any = interpreter._patch_lang) -> Any:
        used = (one for one in function.__globals__.values() if inspect.ismodule(one) and one in (tl, tl.core))
        if any(tl.core.is_builtin(one.load) for one in used):
            return patch(function)
        return interpreter._LangPatchScope()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter, "_patch_lang", once)
        yield
