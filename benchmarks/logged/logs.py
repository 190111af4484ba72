"""Part `bytes` of `benchmarks.logged`: the length of logs, and how many of their entries an auditor needed."""

from benchmarks.logged.context import Context, check_equal
from benchmarks.logged.names import CALIBRATED, KINDS, PROVEN
from benchmarks.logged.steps import Entered, Rules
from benchmarks.table import Row
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.program.rounding import SumKind, sum_kind


def elements_of(program: Program) -> dict[SumKind, int]:
    """The number of elements in the logged sums of a step, by kind."""
    found = dict.fromkeys(SumKind, 0)
    for instruction in program.body:
        kind = sum_kind(instruction)
        if kind is not None:
            found[kind] += instruction.numel
    return found


def dense_bytes(program: Program) -> int:
    """The size of a step's log in the paper's encoding: a base-3 digit for every element, five in a byte."""
    return -(-sum(elements_of(program).values()) // 5)


def log_bytes(c: Context) -> list[Row]:
    """Measures the logs of some steps in every encoding, and the entries that an auditor needed."""
    program = c.captured.program
    elements, dense = elements_of(program), dense_bytes(program)
    published = c.sizes.published.get(c.unit.model)
    target = f"published code: about {published / 1e6:.0f} MB" if published else ""
    rows = [
        c.row("elements of logged sums", sum(elements.values()), "a step"),
        c.row("naive log: a byte an element", sum(elements.values()), "bytes a step"),
        c.row("dense log: base 3, five elements a byte", dense, "bytes a step", target=target),
        *(c.row("elements", elements[kind], "a step", name) for kind, name in KINDS.items()),
    ]
    for precision in c.sizes.precisions:
        for thresholds in (CALIBRATED, PROVEN):
            rows += logs_of(c, c.rules(precision, thresholds=thresholds), thresholds, dense, elements)
    return rows


def logs_of(c: Context, rules: Rules, label: str, dense: int, elements: dict[SumKind, int]) -> list[Row]:
    """Rows of some steps under the given rules."""
    trainer = c.trainer(rules)
    auditor = c.auditor(trainer)
    sparse = 0
    for _ in range(c.sizes.log_steps):
        trainer()
        auditor()
        check_equal(trainer.state, auditor.state, f"{c.unit.case}, b={rules.precision}, {label}")
        sparse += len(trainer.encoded)
    case, steps = (f"b={rules.precision}", label), c.sizes.log_steps
    target = "< 0.001" if rules.precision == 32 else ""
    rows = [
        c.row("sparse log", sparse / steps, "bytes a step", *case),
        c.row("sparse / dense", sparse / steps / dense, "", *case, target=target),
    ]
    total = Entered()
    for kind, counts in auditor.counts.items():
        rows += entry_rows(c, counts, elements[kind], steps, *case, KINDS[kind])
        total.add(counts)
    c.say(f"b={rules.precision}, {label}: {sparse // steps} bytes, {total.entries} entries, {total.needed} needed")
    return rows + entry_rows(c, total, sum(elements.values()), steps, *case)


def entry_rows(c: Context, counts: Entered, elements: int, steps: int, *case: str) -> list[Row]:
    """Rows for the entries per step, and for what became of them."""
    rows = [
        c.row("entries", counts.entries / steps, "a step", *case),
        c.row("entries needed", counts.needed / steps, "a step", *case),
        c.row("open to the auditor, without an entry", counts.missing / steps, "a step", *case),
        c.row("entries without effect", counts.elsewhere / steps, "a step", *case),
    ]
    if elements:
        rows.append(c.row("entries / elements", counts.entries / steps / elements, "", *case))
        rows.append(c.row("entries needed / elements", counts.needed / steps / elements, "", *case, target="< 0.0001"))
    return rows
