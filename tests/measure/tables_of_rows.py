# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables that are made of the rows of one measurement."""

from pathlib import Path
from typing import Any

from tests.measure import ladder as ladders
from tests.measure import switching as switches
from tests.measure import worth as worths
from tests.measure.published import rows
from tests.measure.tables_of_runs import head, line
from tests.packaging.newcomer.measure import PATHS


def yes(value: bool) -> str:
    return "yes" if value else "NO"


def soak() -> str:
    lines = head("ranks", "compressor", "decisions", "changes", "replicas equal", "histories equal")
    return "\n".join(
        lines
        + [
            line(
                f"{row['ranks']}, {row['group']}",
                row["compressor"],
                str(row["decisions"]),
                str(row["changes"]),
                yes(row["replicas_bitwise_equal"]),
                yes(row["histories_equal"]),
            )
            for row in rows("soak")
        ]
    )


def multilevel() -> str:
    lines = head(
        "model",
        "parameters",
        "direct / multi-level (spread)",
        "bound",
        "share of bound",
        "paper",
        "all five / first (spread)",
        "torch.topk / ours at 10x, 1000x",
    )
    for row in rows("multilevel"):
        spread, others = row["spread"], row["all_candidates_spread"]
        lines.append(
            line(
                row["model"],
                f"{row['elements'] / 1e6:.1f} M",
                f"{row['multilevel_over_direct']:.2f} ({spread[0]:.2f}-{spread[1]:.2f})",
                f"{row['bound']:.2f}",
                f"{row['share_of_bound']:.0%}",
                f"{row['paper']:.2f}",
                f"{row['all_candidates_over_first']:.2f} ({others[0]:.2f}-{others[1]:.2f})",
                ", ".join(f"{value:.2f}" for value in row["torch_topk_over_ours"].values()),
            )
        )
    return "\n".join(lines)


def overhead() -> str:
    lines = head("parameters", "native step", "gravac / native", "bare hook / native", "telemetry, share of a step")
    for row in rows("overhead"):
        ours, bare = row["interval_95"], row["bare_hook_interval_95"]
        lines.append(
            line(
                f"{row['parameters'] / 1e6:.1f} M",
                f"{row['native_step_ms']:.0f} ms",
                f"{row['ours_over_native']:.3f} ({ours[0]:.3f}-{ours[1]:.3f})",
                f"{row['bare_hook_over_native']:.3f} ({bare[0]:.3f}-{bare[1]:.3f})",
                f"{row['telemetry_share_of_step']:.2%}",
            )
        )
    return "\n".join(lines)


def agreement() -> str:
    said = {
        "agreement_started": "the agreement is handed over",
        "start_call": "that call takes",
        "first_gradients_started": "the first gradients are started",
        "gradients_arrived": "the last gradients have arrived",
        "waited_for_agreement": "the step's end then waits for the agreement",
    }

    def ms(value: float, of: float) -> str:
        return f"{value:.2f}" if of < 1 and value < 1 else f"{value:.1f}"

    lines = head("what", "ms")
    for row in rows("agreement"):
        middle = row["median_ms"]
        low, high = (ms(row[key], middle) for key in ("lowest_ms", "highest_ms"))
        lines.append(line(said[row["what"]], f"{ms(middle, middle)} ({low}-{high})"))
    return "\n".join(lines)


def links() -> str:
    lines = head(
        "rate, workers",
        "measured TCP, Mbit/s",
        "torch's all-reduce",
        "our exchange",
        "a DDP step",
        "interface / ledger bytes",
        "the same without packet headers",
    )
    own = [row for row in rows("links") if row["kind"] == "all-reduce"]
    for rate in sorted({row["rate_mbit"] for row in own}):
        for workers in sorted({row["workers"] for row in own}):
            ways = {row["way"]: row for row in own if (row["rate_mbit"], row["workers"]) == (rate, workers)}
            step = ways["ddp"]
            bytes_ = (step["interface_over_ledger"], step["interface_less_headers_over_ledger"])
            lines.append(
                line(
                    f"{rate:.0f} Mbit/s, {workers}",
                    f"{step['tcp_mbit']:.1f}",
                    *(f"{ways[way]['over_expected']:.3f}" for way in ("torch", "transport", "ddp")),
                    f"{bytes_[0][0]:.3f} to {bytes_[0][1]:.3f}",
                    f"{bytes_[1][0]:.4f} to {bytes_[1][1]:.4f}",
                )
            )
    return "\n".join(lines)


def factored() -> str:
    lines = head(
        "task, link, method", "steps factored / on the link", "the same curve, bit for bit", "factored / full time"
    )
    return "\n".join(
        lines
        + [
            line(
                f"{row['task']}, {row['link']}, `{row['method']}`",
                f"{row['steps']} / {row['steps_on_the_link']}",
                yes(row["same_curve"]),
                f"{row['factored_over_full']:.3f}",
            )
            for row in rows("factored")
        ]
    )


def switching() -> str:
    return switches.table(rows("switching"))


def worth() -> str:
    return worths.table(rows("worth"))


def ladder() -> str:
    return ladders.table(rows("ladder"))


def compressors() -> str:
    lines = head("compressor", "CF", "wire ratio", "gain", "vNMSE", "encode", "decode", "total (quartiles)", "extra MB")
    for row in rows("compressors"):
        shares = " | ".join(f"{row[f'{part}_over_copy']:.1f}" for part in ("encode", "decode", "total"))
        spread = f"({row['total_over_copy_low']:.1f}-{row['total_over_copy_high']:.1f})"
        lines.append(
            f"| `{row['compressor']}` | {row['cf']:.4g} | {row['wire_ratio']:.4g} | {row['gain']:.3f} "
            f"| {row['vnmse']:.3g} | {shares} {spread} | {row['extra_bytes'] / 1e6:.0f} |"
        )
    return "\n".join(lines)


AIMS = (
    ("topkc", 10, 6),
    ("randomk(block=64)", 10, 5),
    ("quantize", 4, 12),
    ("quantize", 8, 15),
    ("quantize", 16, 15),
    ("quantize", 32, 15),
    ("topk", 100, 15),
    ("thc", 8, 25),
)
"""Compressor, CF, and the copies it was to take at most."""


def aims() -> str:
    lines = head("compressor", "CF", "aim", "copies (quartiles)", "")
    found: dict[tuple[str, float], dict[str, Any]] = {
        (row["compressor"], row["cf"]): row for row in rows("compressors")
    }
    for name, cf, aim in AIMS:
        row = found[name, cf]
        total = row["total_over_copy"]
        spread = f"{row['total_over_copy_low']:.1f}-{row['total_over_copy_high']:.1f}"
        lines.append(
            line(f"`{name}`", f"{cf:g}", str(aim), f"{total:.1f} ({spread})", "" if total <= aim else "**missed**")
        )
    return "\n".join(lines)


def chunks() -> str:
    sizes = (8, 16, 32, 64, 128, 256, 512)
    found = rows("chunks")
    lines = head("bits per coordinate", "top-k", "topkc, chunk 8", *map(str, sizes[1:]), "chunk 128, permuted")
    for bits in dict.fromkeys(row["bits"] for row in found):
        own = {row["chunk"]: row for row in found if row["bits"] == bits}
        best = min(row["vnmse"] for chunk, row in own.items() if chunk)
        cells = []
        for size in sizes:
            shown = f"{own[size]['vnmse']:.3f}" if size in own else ""
            cells.append(f"**{shown}**" if size in own and own[size]["vnmse"] == best else shown)
        lines.append(line(f"{bits:g}", f"{own[None]['vnmse']:.3f}", *cells, f"{own[128]['vnmse_permuted']:.3f}"))
    return "\n".join(lines)


def telemetry() -> str:
    lines = head("sinks", "wall time, µs a step (range)", "of the calling thread", "of all threads", "bytes a step")
    for row in rows("telemetry"):
        low, high = row["wall_us_range"]
        lines.append(
            line(
                row["sink"],
                f"{row['wall_us']:.0f} ({low:.0f}-{high:.0f})",
                f"{row['calling_thread_us']:.0f}",
                f"{row['all_threads_us']:.0f}",
                str(row["bytes_a_step"]),
            )
        )
    return "\n".join(lines)


def newcomer() -> str:
    lines = head("path", "page", "lines added", "installing gravac", "from the start to the first decision", "its step")
    for row in rows("newcomer"):
        page = Path(PATHS[row["path"]][1]).relative_to("docs")  # where it is today; it may have moved since
        lines.append(
            line(
                row["path"],
                f"[{page.stem}](../{page.as_posix()})",
                str(row["lines"]),
                f"{row['install_seconds']:.0f} s",
                f"{row['start_to_decision_seconds']:.0f} s",
                str(row["decision_step"]),
            )
        )
    return "\n".join(lines)


def cuda_audit() -> str:
    """Of 2^20 elements; of others where they differ."""
    lines = head("compressor", "CF", "host reads", "copies", "kernels, 2 ranks", "8 ranks", "2^17 and 2^24 elements")
    found = [row for row in rows("cuda_audit") if (row["tensors"], row["by"]) == (1, "operators")]
    for row in found:
        if row["world"] != 2 or row["elements"] != 1 << 20:
            continue
        same = [one for one in found if (one["compressor"], one["cf"]) == (row["compressor"], row["cf"])]
        two, eight = ([one for one in same if one["world"] == world] for world in (2, 8))
        of = {one["elements"]: one["kernels"] for one in two}
        lines.append(
            line(
                f"`{row['compressor']}`",
                f"{row['cf']:.4g}",
                str(max(one["waits"] for one in same)),
                str(max(one["copies"] for one in same)),
                str(row["kernels"]),
                str(next(one["kernels"] for one in eight if one["elements"] == 1 << 20)),
                f"{of[1 << 17]}, {of[1 << 24]}",
            )
        )
    return "\n".join(lines)


def memory() -> str:
    """Bytes for a parameter with residuals in float32, bfloat16; and for an element of a group, at most of these."""
    lines = head(
        "compressor",
        "CF",
        "between steps",
        "in a step",
        "overflow safety: between",
        "in a step",
        "a group, 2 ranks",
        "8 ranks",
    )
    found = rows("memory")
    for label in dict.fromkeys(row["compressor"] for row in found):
        own = [row for row in found if row["compressor"] == label]
        two, eight = ([row for row in own if row["world"] == world] for world in (2, 8))
        cells = [
            ", ".join(f"{row[key]:.1f}" for row in two if row["overflow_safety"] == safe)
            for safe in (False, True)
            for key in ("kept", "within_a_step")
        ]
        groups = (f"{max(row['group'] for row in of):.1f}" for of in (two, eight))
        name, _, how = label.partition(", ")
        lines.append(line(f"`{name}`{', ' * bool(how)}{how}", f"{own[0]['cf']:.4g}", *cells, *groups))
    return "\n".join(lines)


def cuda_audit_groups() -> str:
    """Of one tensor of 2^20 elements, and of 24 of 2^18 as one group; by operators and by kernels."""
    lines = head("compressor", "ranks", "one, by operators", "one, by kernels", "24, by operators", "24, by kernels")
    counts = {
        (row["compressor"], row["world"], row["tensors"], row["by"]): row["kernels"]
        for row in rows("cuda_audit")
        if row["tensors"] > 1 or row["elements"] == 1 << 20
    }
    for compressor, world in dict.fromkeys(key[:2] for key in counts if key[2] > 1):
        cells = [str(counts[compressor, world, tensors, by]) for tensors in (1, 24) for by in ("operators", "kernels")]
        lines.append(line(f"`{compressor}`", str(world), *cells))
    return "\n".join(lines)


def predictions() -> str:
    said = {"20mbit": "20 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s"}
    lines = head("link", "within 15 % (least and most of a draw)", "median error", "worst")
    for row in rows("predictions"):
        span = f"({100 * row['least_of_a_draw']:.0f}-{100 * row['most_of_a_draw']:.0f})"
        share = f"{100 * row['within_15_percent']:.0f} %"
        if row["link"] == "all":
            lines.append(line("all", f"**{share}** {span}", "", ""))
        else:
            errors = (f"{100 * row[key]:.0f} %" for key in ("median_error", "worst_error"))
            lines.append(line(said[row["link"]], f"{share} {span}", *errors))
    return "\n".join(lines)


def datacentre() -> str:
    lines = head(
        "GPU, batch time",
        "coding cost as published: all, at 10 Gbit/s and more",
        "our cost in copies, at a GPU's speed: all, at 10 Gbit/s and more",
    )
    for gpu in dict.fromkeys(row["gpu"] for row in rows("datacentre")):
        cells = [f"{wins(costs, gpu, 'wins')}, {wins(costs, gpu, 'wins', 10)}" for costs in ("published", "copies")]
        lines.append(line(gpu.replace(" ", ", "), *cells))
    return "\n".join(lines)


def wins(costs: str, gpu: str, key: str, least_gbit: float = 0) -> str:
    """How many of how many set-ups."""
    own = [r for r in rows("datacentre") if (r["costs"], r["gpu"]) == (costs, gpu) and r["gbit"] >= least_gbit]
    return f"{sum(row[key] for row in own)} of {sum(row['setups'] for row in own)}"
