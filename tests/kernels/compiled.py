# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels in PTX for a GPU that need not be there, as JSON; for a process that does not interpret kernels.

``python -m tests.kernels.compiled``: the quantizer's for ``CASES``, those of chunks once.
"""

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gravac.compressors.kernels import chunk_decode, chunks, codes, quantize, tiles
from gravac.compressors.levels import LevelKind
from gravac.compressors.packing import packed_bytes

CAPABILITY = 80
"""The oldest CUDA GPUs that compute with bfloat16: 8.0."""

CASES: tuple[tuple[int, LevelKind, int], ...] = ((4, "fitted", 128), (3, "uniform", 24), (8, "uniform", 1000))
"""Bits, levels, and numbers per block."""

SEVERAL = 3
"""Tensors of a group."""

TYPES: dict[str, Any] = {
    "gradient": "*bf16",
    "gradients": ("*bf16",) * SEVERAL,
    "chunk_indices": "*i64",
    **dict.fromkeys(("residuals", "denses"), ("*fp32",) * SEVERAL),
    **dict.fromkeys(("message", "messages"), "*u8"),
    **dict.fromkeys(("wire_energies", "values"), "*i16"),
    **dict.fromkeys(("residual", "decoded", "unsent", "dense", "sums_out", "x"), "*fp32"),
    **dict.fromkeys(("sums_of_programs", "energies"), "*fp64"),
    **dict.fromkeys(("elements", "block_count", "shard_blocks", "shard_stride", "rank_stride"), "i32"),
    **dict.fromkeys(("chunk_count", "selected_count", "k", "width"), "i32"),
    **dict.fromkeys(("factor", "inverse_ranks", "alpha", "world"), "fp32"),
}
"""Types of the kernels' arguments, by name; others are constants."""


def ptx(kernel: Any, constants: dict[str, Any], warps: int) -> str:
    signature = {name: TYPES.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): one for name, one in constants.items()})
    options = {"enable_fp_fusion": False, "num_warps": warps}
    made = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    assert made.asm["cubin"]
    text: str = made.asm["ptx"]
    return text


def quantizers(bits: int, kind: LevelKind, block: int) -> dict[str, str]:
    """The quantizer's kernels for so many bits, of levels of a kind, and numbers per block."""
    code = codes.code_table_for(bits, kind)
    tiling = codes.tiling(block, code.group_size)
    warps = tiling.pop("num_warps")
    shared: dict[str, Any] = {"block": block, "bits": bits, "block_code_bytes": packed_bytes(block, bits), **tiling}
    shared |= {"positive_levels": code.positive_levels, "max_code": code.max_code}
    return {
        f"encode {bits} {kind} {block}": ptx(
            quantize._encode, {**shared, "threshold_points": code.threshold_points}, warps
        ),
        f"decode {bits} {kind} {block}": ptx(quantize._decode, {**shared, "ranks": 3, "add": True}, warps),
    }


def of_chunks(chunk: int) -> dict[str, str]:
    """The kernels of chunks of so many numbers."""
    cut: dict[str, Any] = {"chunk": chunk, **tiles.tiling(chunk)}
    return {
        "chunk_energies": ptx(chunks._energies, {**cut, "tensor_count": SEVERAL}, 4),
        "chunk_take": ptx(chunks._take, {**cut, "wire_format": "bfloat16"}, 4),
        "chunk_decode": ptx(chunk_decode._decode, {**cut, "tensor_count": SEVERAL, "halvings": 5, "add": True}, 4),
    }


if __name__ == "__main__":
    found = of_chunks(128)
    for case in CASES:
        found |= quantizers(*case)
    print(json.dumps(found))
