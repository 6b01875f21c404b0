# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels in PTX for a GPU that need not be there, as JSON; for a process that does not interpret kernels.

``python -m tests.kernels.compiled 4 fitted 128``: the quantizer's bits and levels, and the numbers per block.
"""

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gravac.compressors.packing import packed_bytes
from gravac.kernels import chunks, codes, quantize

CAPABILITY = 80
"""The oldest CUDA GPUs that compute with bfloat16: 8.0."""

TYPES = {
    "gradient": "*bf16",
    **dict.fromkeys(("message", "messages"), "*u8"),
    **dict.fromkeys(("residual", "decoded", "left", "sums", "dense", "folded", "energies"), "*fp32"),
    **dict.fromkeys(("numbers", "blocks", "per", "stride", "stride_of_part"), "i32"),
    **dict.fromkeys(("factor", "share", "alpha"), "fp32"),
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


def main(bits: int, kind: str, block: int) -> None:
    code = codes.code_for(bits, kind)
    tiling = codes.tiling(block, code.together)
    warps = tiling.pop("num_warps")
    shared = {"block": block, "bits": bits, "width": packed_bytes(block, bits), **tiling}
    shared |= {"positive": code.positive, "most": code.most}
    columns = triton.next_power_of_2(block)
    found = {
        "encode": ptx(quantize._encode, {**shared, "points": code.points}, warps),
        "decode": ptx(quantize._decode, {**shared, "parts": 3, "add": True}, warps),
        "chunk_energies": ptx(chunks._energies, {"chunk": block, "rows": 1, "columns": columns}, warps),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
