"""`tiebreak monitor`: what the trainer of a run tells, rule by rule, while it trains or afterwards.

With --json it prints JSON lines, as they come: {"event": "sample", ...} with the fields of
`alarms.Sample`, those not known left out, and {"event": "rules", "step", "alarm", "rules", "note"} at the
end and whenever a rule stands differently.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from tiebreak import api
from tiebreak.cli import options as opt

ALARM: Final = 4
POLL: Final = click.FloatRange(0.01, 3600)


@click.command()
@click.argument("run", type=opt.FOLDER)
@click.option("--once", is_flag=True, help="Look once, and do not wait for more.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of words.")
@click.option("--step-seconds", type=click.FloatRange(min=0, min_open=True),
              help="Expected seconds per step on the agreed machine; half to twice as long passes.")  # fmt: skip
@click.option("--states", is_flag=True, help="Compare the losses of all steps before kept states, not of checkpoints "
              "alone. Reads every kept state.")  # fmt: skip
@click.option("--poll", type=POLL, default=1.0, show_default=True, help="Seconds between looks.")
def monitor(run: Path, once: bool, as_json: bool, step_seconds: float | None, states: bool, poll: float) -> int:
    """Watch what RUN measures of itself, while it trains or later.

    It reads the losses of all steps, and what `tiebreak train --monitor` or a running trainer measures: utilisation,
    memory and, of a GPU, power. Each rule holds, raises an alarm, or is open where it cannot be judged. losses,
    utilisation and memory are those of Kang et al. (2023): a loss for each step, 40% of samples at or above their
    mean, memory that rises and then stays. heads: losses are those in the signed records. rate: a step takes half to
    twice --step-seconds. silence: no pause is longer than three minutes, or ten times the usual one. lines: the files
    are of this job, in order, and well formed.

    The worker itself reports all of it but the signed records, so an alarm is a reason to audit and never a
    verdict, and without one nothing is proven: `tiebreak audit` does that.

    Exit codes: 0 no alarm, 4 an alarm, 2 the folder holds what does not verify, 1 not possible as asked. It ends when
    the run has its last checkpoint.
    """
    watch = api.monitoring.RunMonitor(api.reading.open_directory(run), step_seconds=step_seconds, states=states)
    rules, last = _follow(watch, once=once, as_json=as_json, poll=poll)
    click.echo(_told(rules, last, as_json=as_json, at_end=True))
    return ALARM if any(rule.standing is api.alarms.WorkerStanding.ALARM for rule in rules) else 0


def _follow(
    watch: "api.monitoring.RunMonitor", *, once: bool, as_json: bool, poll: float
) -> "tuple[tuple[api.alarms.Rule, ...], api.alarms.Sample | None]":
    """Prints new samples and rules until the run is over. Returns the rules' last standing, and the last sample."""
    before: dict[str, str] = {}
    last = None
    while True:
        is_over, now = once or watch.is_over, time.time()
        for sample in watch.look(now):
            if not once:
                click.echo(_line(sample, last, as_json=as_json))
            last = sample
        rules = watch.rules(now)
        if is_over:
            return rules, last
        if (standings := {rule.name: str(rule.standing) for rule in rules}) != before:
            changed = rules if as_json else [rule for rule in rules if before.get(rule.name) != rule.standing]
            click.echo(_told(changed, last, as_json=as_json))
        before = standings
        time.sleep(poll)


def _line(sample: "api.alarms.Sample", before: "api.alarms.Sample | None", *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"event": "sample", **json.loads(api.alarms.as_line(sample))})
    words = [f"step {sample.step}"]
    if sample.loss_bits is not None:
        words.append(f"loss {api.alarms.shown_loss(sample.loss_bits).partition(' ')[0]}")
    if before is not None and sample.time > before.time and sample.step > before.step:
        words.append(f"{(sample.step - before.step) / (sample.time - before.time):.3g} steps/s")
    shares = ((name, getattr(sample, name)) for name in ("processor", "machine", "gpu"))
    words += [f"{name} {100 * share:.0f}%" for name, share in shares if share is not None]
    sizes = (("memory", sample.memory), ("GPU memory", sample.gpu_memory))
    words += [f"{name} {size / (1 << 20):.0f} MiB" for name, size in sizes if size is not None]
    if sample.watts is not None:
        words.append(f"{sample.watts:.0f} W")
    return ", ".join(words)


def _told(
    rules: "Sequence[api.alarms.Rule]", last: "api.alarms.Sample | None", *, as_json: bool, at_end: bool = False
) -> str:
    if as_json:
        found = [{"rule": rule.name, "standing": rule.standing.lower(), "text": rule.text} for rule in rules]
        alarm = any(rule["standing"] == "alarm" for rule in found)
        step = None if last is None else last.step
        return json.dumps({"event": "rules", "step": step, "alarm": alarm, "rules": found, "note": api.alarms.NOTE})
    lines = [f"{rule.name:<13}{rule.standing:<7}{rule.text}" for rule in rules]
    is_alarm = any(rule.standing is api.alarms.WorkerStanding.ALARM for rule in rules)
    return "\n".join([*lines, f"All of it is {api.alarms.NOTE}."] if at_end or is_alarm else lines)
