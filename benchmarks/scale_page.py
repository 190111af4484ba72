"""Writes docs/scale.md from what was measured: `python -m benchmarks.scale_page docs/scale.md [--check]`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.gas_page import table
from sim.scale.bottleneck import DIRECTIONS, Budgets
from sim.scale.curves import document
from sim.scale.measurements import RESULTS, Measurements
from sim.scale.model import WHAT
from tiebreak.commands.scale import human

HEAD = """# What it costs at any size

A cost model fitted to this repository's own measurements and tested against others that it was not fitted to. Generated
by `python -m benchmarks.scale_page docs/scale.md` from `benchmarks/results/scale.json` (`make bench-scale`) and, for the
points that are held out, from the other files there; a test compares. `tiebreak scale` gives the same for figures of
your own.

**All seconds are CPU seconds of one core.** No GPU was measured. For another device take its own step in plain FP32
PyTorch and multiply it by *trainer / plain PyTorch* (`tiebreak scale --step-seconds`): a ratio that was measured on
this CPU alone, and that depends on how much slower FP64 products are than FP32 ones there.

"""
LABELS = {
    "eager": "a step in plain FP32 PyTorch, s",
    "trainer": "the trainer's step, s",
    "ratio": "trainer / plain PyTorch, over the ratio of the two fits",
    "hashed": "a step with every value hashed, s",
    "hashing": "hashing a state, s",
    "writing": "writing a state, s",
    "sums": "the accumulator tree of one element, s",
    "memory": "a trainer's peak memory, bytes",
    "logs": "rounding log of a step, bytes",
    "gas of moves": "execution gas of a move",
    "gas of proofs": "execution gas of a proof",
}
COLUMNS = {
    "parameters": ("plain_step", "trainer_step", "slowdown", "checkpoint", "memory", "state_bytes", "moves",
                   "message_bytes", "dispute_gas"),
    "steps": ("training", "auditing", "run_bytes", "records_bytes", "metrics_bytes", "moves", "message_bytes",
              "dispute_gas", "job_gas"),
    "jobs": ("all_auditing", "all_bytes", "all_gas"),
}  # fmt: skip


def number(value: float) -> str:
    """In four digits."""
    return f"{value:,.0f}" if value >= 10_000 else f"{value:.4g}"


def measured(p: dict[str, Any], unit: str) -> str:
    """A prediction with its bounds; a star where it is extrapolated."""
    if p["exact"]:
        return human(p["value"], unit)
    star = "*" if p["extrapolated"] else ""
    return f"{human(p['value'], unit)}{star} ({human(p['low'], unit)} – {human(p['high'], unit)})"


def held_out(d: dict[str, Any]) -> list[str]:
    """Predictions beside measurements."""
    points = d["held_out"]
    missed = [p for p in points if not p["holds"]]
    inside = sum(p["inside"] for p in points if not p["predicted"]["exact"])
    estimated = sum(not p["predicted"]["exact"] for p in points)
    lines = [
        "## Held-out points",
        "",
        "None of these was fitted to: models at their published sizes, seven to forty times as large as the largest that",
        "was, and disputes over a program of 4245 instructions. Bounds were set before: times, and their ratios, within",
        "a factor of 2, writing to disk of 3, memory of 1.5, logs of 3, gas within 5 %, numbers of transactions exactly.",
        "On two threads a step is predicted as half of one thread's seconds.",
        f"{len(points) - len(missed)} of {len(points)} are within their bounds; {inside} of {estimated} lie between the",
        "prediction's own bounds of 90 %.",
        "",
    ]
    rows = []
    for p in points:
        bounds = (
            "" if p["predicted"]["exact"] else f"{number(p['predicted']['low'])} – {number(p['predicted']['high'])}"
        )
        off = f"{p['factor']:.3f}" + ("" if p["holds"] else " **over**")
        rows.append(
            (f"{p['what']}, {p['case']}", f"{p['source']}.json", number(p["predicted"]["value"]), bounds,
             number(p["measured"]), p["unit"], off, f"{p['bound']:g}")
        )  # fmt: skip
    header = ("what", "measured in", "predicted", "90 %", "measured", "unit", "off by a factor of", "bound")
    return lines + table(header, rows)


def fits(d: dict[str, Any]) -> list[str]:
    """Every fit's coefficients."""
    lines = [
        "## Fits",
        "",
        "Sums of what each feature costs, none of it negative, by relative error (`sim/scale/fitting.py`). *Spread*: the",
        "standard deviation of what is left over. A coefficient of 0 is one that the measurements do not show.",
        "",
    ]
    rows = []
    for name, label in LABELS.items():
        fit = d["fits"][name]
        if name.startswith("gas"):
            kept = [c for c in fit["coefficients"] if c["name"] in ("nodes", "siblings", "calldata")]
        else:
            kept = fit["coefficients"]
        told = ", ".join(f"{c['name']} {c['value']:.3g} ± {c['error']:.1g}" for c in kept)
        rows.append((label, told, str(fit["points"]), f"{100 * fit['spread']:.2g}%"))
    lines += table(("cost", "a unit of each feature costs", "points", "spread"), rows)
    return [
        *lines,
        "Gas beside that: 21,000 and calldata of every transaction, and a constant for each kind of move.",
        "",
    ]


def curves(d: dict[str, Any]) -> list[str]:
    """A table for each direction."""
    job = d["job"]
    lines = [
        "## Growth",
        "",
        f"From one job of {job['parameters']:,} parameters, {job['steps']:,} steps, a checkpoint every",
        f"{job['interval']:,}, r = {job['levels']}; a step takes 8 sequences of 1024 tokens. Each direction by itself.",
        "A star: beyond what was measured; its bounds, of 90 %, hold if costs go on growing as they did. Without",
        "bounds: counted.",
        "",
    ]
    for direction in DIRECTIONS:
        names = COLUMNS[direction]
        rows = [
            (
                f"{point['size']:,}",
                *(measured(point["costs"][name], WHAT[name][1]) for name in names),
                f"{point['most_used']}, {100 * point['share']:.3g}%",
            )
            for point in d["curves"][direction][::2]
        ]
        lines += [f"### {direction.capitalize()}", ""]
        lines += table((direction, *(WHAT[name][0] for name in names), "budget most used"), rows)
    return lines


def bottlenecks(d: dict[str, Any]) -> list[str]:
    """What gives way first."""
    b = d["budgets"]
    lines = [
        "## What gives way first",
        "",
        f"Budgets: {human(b['memory_bytes'], 'bytes')} of memory, {human(b['disk_bytes'], 'bytes')} of disk, "
        f"{b['days']:g} days,",
        f"{b['auditor_cores']:g} core that audits, {human(b['replay_time'], 's')} of replay time a move, blocks of "
        f"{b['block_gas'] / 1e6:g}M gas every {b['block_seconds']:g} s,",
        f"of which {100 * b['chain_share']:g}% for these jobs; and this version's own limits.",
        "",
    ]
    rows = []
    for found in d["bottlenecks"]:
        first = found["first"]
        if first is None:
            rows.append((found["direction"], f"{found['at']:,}", "nothing, as far as was looked", "", ""))
            continue
        at = "over already" if found["at"] is None else f"{found['at']:,}" + ("*" if found["extrapolated"] else "")
        rows.append((found["direction"], at, first["budget"], human(first["limit"], first["unit"]), first["lift"]))
    return lines + table(("direction", "within all budgets up to", "then", "limit", "what would lift it"), rows)


def page(d: dict[str, Any]) -> str:
    """The whole page."""
    machine = ", ".join(f"{k} {d['environment'][k]}" for k in ("cpu", "torch", "torch instruction set"))
    parts = [f"Machine: {machine}.", "", *held_out(d), *bottlenecks(d), *curves(d), *fits(d)]
    return HEAD + "\n".join(parts).rstrip() + "\n"


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the measurements")
    options = parser.parse_args()
    text = page(document(Measurements.read(options.results), Budgets()))
    if not options.check:
        options.path.write_text(text, encoding="utf-8")
        return 0
    if options.path.read_text("utf-8") == text:
        return 0
    print(
        f"{options.path} is not what was measured: run python -m benchmarks.scale_page {options.path}", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
