# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Texts for recommendations and lines of code that depend on how a model is distributed: by DDP or in shards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Texts for recommendations and lines of code that depend on how a model is distributed.

    Attributes:
        stay_text: recommendation to leave the exchange to torch.
        native_step: name, with an article, of a step in which torch itself exchanges.
        native_steps: plural of ``native_step``.
        expect_native: beginning of the verdict that torch's own exchange is best; "in 16 bit" or "in float32" follows.
        model_variable: name of the variable that is passed to ``attach``.
        native_code: line of code for torch's own exchange, by compression factor: 1 for float32, 2 for 16 bit.
            ``{dtype}`` and ``{short}`` stand for the name of the 16-bit format, such as ``bfloat16`` and ``bf16``.
    """

    stay_text: str
    native_step: str
    native_steps: str
    expect_native: str
    model_variable: str
    native_code: dict[float, str]


IN_DDP = Wrapping(
    stay_text="keep DDP's own exchange",
    native_step="a native step",
    native_steps="native steps",
    expect_native="expect native steps, by DDP itself",
    model_variable="ddp",
    native_code={1.0: "DDP, no hook", 2.0: "ddp.register_comm_hook(None, {short}_compress_hook)"},
)
"""Texts for a model in DDP; if torch's own exchange is best, an attached gravac runs native steps."""

IN_SHARDS = Wrapping(
    stay_text="do not attach gravac",
    native_step="a step by torch's own HSDP",
    native_steps="steps by torch's own HSDP",
    expect_native="do not attach gravac: expect steps by torch's own HSDP, reduced",
    model_variable="model",
    native_code={
        1.0: "fully_shard(module, mesh=mesh), without gravac",
        2.0: "fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.{dtype})), without "
        "gravac",
    },
)
"""Texts for a model in shards on a mesh; if torch's own exchange is best, gravac must not be attached."""
