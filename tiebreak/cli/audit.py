"""`tiebreak audit` replays a run, or a part of it, and compares the records; or recomputes drawn losses alone."""

import json
import secrets
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.api.watching.alarms import shown_loss
from tiebreak.cli import options as opt
from tiebreak.cli.main import MissingExtra, missing_of
from tiebreak.engine.run.segments import chances
from tiebreak.protocol.errors import CannotCheck, ConfigurationError, ForbiddenLoss, VerificationError

if TYPE_CHECKING:
    from tiebreak.engine.run.audit import SegmentAudit, SegmentReport
    from tiebreak.engine.run.directory import RunDirectory
    from tiebreak.engine.run.logs import LogReport

COULD_NOT_CHECK: Final = 3
SHOWN: Final = 8
"""The most findings of logs, and states from which a replay began, that are printed."""
FORWARD_SAMPLE: Final = 10
_ONLY_REPLAYS: Final = {"output", "segment", "from_step", "to_step", "jobs", "ray", "ledger", "policy", "rewards"}
"""The options for which --forward has no use."""


class AuditFailure(VerificationError):
    """The replay contradicts what the trainer signed. details: lines to print below the sentence.

    verdict: for documents.
    """

    def __init__(self, sentence: str, details: list[str], verdict: str = "fraud") -> None:
        super().__init__(sentence)
        self.details, self.verdict = details, verdict


@click.command()
@click.argument("run", type=opt.FOLDER)
@click.option("--output", "-o", type=opt.NEW_FOLDER, help="Folder for the replay of a whole audit; resumed if it "
              "exists.  [default: replays/JOB in ~/.local/state/tiebreak]")  # fmt: skip
@click.option("--segment", type=click.IntRange(0), help="Check only this segment, counted from 0.")
@click.option("--from-step", type=click.IntRange(1), help="Check the segments from the one with this step on.")
@click.option("--to-step", type=click.IntRange(1), help="Check the segments up to the one with this step.")
@click.option("--sample", type=click.IntRange(1), help="Check this many segments, drawn at random; with --forward, "
              f"this many steps (default: {FORWARD_SAMPLE}).")  # fmt: skip
@click.option("--seed", help="Seed of the sample. Keep it secret until the head is signed.  [default: a new one]")
@click.option("--forward", is_flag=True, help="Recompute only the losses of drawn steps: cheaper, blind to updates.")
@click.option("--jobs", type=click.IntRange(1), help="Processes that replay segments at once; with --ray, the most.")
@click.option("--ray", is_flag=False, flag_value="", metavar="[ADDRESS]", help="Replay segments on a Ray cluster, "
              "whose machines all see RUN.  [default address: RAY_ADDRESS, or else one started here]")  # fmt: skip
@click.option("--ledger", type=opt.NEW_FILE, help="With --jobs or --ray: the file that keeps progress; repeat the "
              "command to go on.  [default: one for each choice of segments, in ~/.local/state/tiebreak]")  # fmt: skip
@click.option("--rewards", type=opt.FILE, help="After the audit, also compute the declared advantages of rollouts "
              "again, by your own Python file with `trainer(output_dir)`. Its code is run.")  # fmt: skip
@opt.json_option
@opt.machine_options("threads", "permute", "device", "graphs", "policy")
def audit(
    run: Path, output: Path | None, segment: int | None, from_step: int | None, to_step: int | None, sample: int | None,
    seed: str | None, forward: bool, as_json: bool, jobs: int | None, ray: str | None, ledger: Path | None,
    rewards: Path | None, machine: Machine,
) -> int:  # fmt: skip
    """Replay RUN, or a sample of it, and compare with what is signed.

    The signed heads are compared with what the program really produces. A whole audit needs only the job, the program,
    the data and the initial state of RUN, each checked against the job's roots; nothing else of it is believed. Its
    replay is kept, for a dispute needs it.

    --segment, --from-step/--to-step and --sample check parts of it: each segment from the nearest checkpoint that the
    trainer kept before it, which must hash to what is signed, to the record at its end. A sample finds a cheat with the
    probability that is printed, if it was drawn after the head was signed.

    An audit that reaches the last signed step also looks at the state that RUN keeps of it, which becomes the weights:
    if that file is not what was signed, the exit code is 3.

    --jobs and --ray check parts, by default all, by several processes at once; --threads are then those of
    each. Parts begin at kept checkpoints, so how far that helps depends on how many the trainer kept. A disagreement is
    computed again by another process, in another order, before it counts. Nothing is lost when one of them is killed,
    and when the command is, repeat it. No replay is kept.

    Under policy `logged` the trainer's logs in RUN are followed, once they hash to what is signed. A client signs no
    receipt for logs that do not, and without it such a job does not settle.

    --forward is a cheap look before, or instead of, a replay: the committed losses of drawn steps, bit for bit. A step
    can be drawn if RUN holds the states before it and at the end of its segment; which states are kept is the trainer's
    choice. A loss with other bits than committed is fraud, and a replay or a dispute proves it. A lie that leaves the
    losses of drawn steps true is not seen: a false update, or any step that was not drawn. --sample alone sees these.

    --rewards is for runs of TRL's GRPOTrainer and RLOOTrainer, whose rewards are Python code. The `trainer(output_dir)`
    of FILE returns a trainer made as the one that trained, with the same model, data set, settings and rewards. Each
    reward is computed from the published completions, and the first step, entry and row with other advantages than
    published is named. Only run a file that you trust: no code comes from RUN.

    If you trained RUN here by `tiebreak.hf.train`, the W&B and MLflow runs of its `report_to` get the report.

    Exit codes: 0 agrees, 2 fraud or other rewards, 3 could not be checked (withheld or damaged), 1 asked for what is
    not there.
    """
    report: dict[str, Any] = {"run": str(run)}
    try:
        chosen = [segment is not None, from_step is not None or to_step is not None, sample is not None]
        if sum(chosen) > 1:
            raise ConfigurationError("expected one of --segment, --from-step/--to-step and --sample, got several")
        if seed is not None and sample is None and not forward:
            raise ConfigurationError("expected --seed together with --sample, got it alone")
        if ledger is not None and jobs is None and ray is None:
            raise ConfigurationError("expected --ledger together with --jobs or --ray, got it alone")
        trainer = api.reading.open_directory(run)
        remade = None if rewards is None else _trainer_of(rewards, trainer)
        report["job"] = trainer.job.id.hex()
        workers = None if jobs is None and ray is None else api.audits.Workers(jobs=jobs, ray=ray, ledger=ledger)
        if forward:
            opt.refuse(_ONLY_REPLAYS, "no option about replays with --forward")
            drawn = seed or secrets.token_hex(16)
            lines = _forward(trainer, sample or FORWARD_SAMPLE, drawn, machine, report, as_json=as_json)
        elif any(chosen) or workers is not None:
            lines = _parts(trainer, segment, (from_step, to_step), sample, seed, machine, workers, report)
        else:
            # In none of the folders in which archives are unpacked: one could bring a replay.
            place = api.environment.own_folder() / "replays" / trainer.job.id.hex()
            lines = _whole(trainer, output or place, machine, report)
        if remade is not None and rewards is not None:
            lines.insert(-1, _rewards(trainer, rewards, remade, report))
        report["verdict"] = "agrees"
        code, errors = 0, list[str]()
    except (CannotCheck, VerificationError) as error:
        failed, reason = error if isinstance(error, AuditFailure) else None, " ".join(str(error).split())
        is_fraud = failed is not None or isinstance(error, ForbiddenLoss)
        verdict = failed.verdict if failed else "fraud" if is_fraud else "could not check"
        report |= {"verdict": verdict, "reason": reason}
        details = failed.details if failed else []
        code, lines, errors = 2 if is_fraud else COULD_NOT_CHECK, [], [f"{type(error).__name__}: {reason}", *details]
    _tell(run, report, [json.dumps(report)] if as_json else lines, errors)
    return code


def _tell(run: Path, report: dict[str, Any], lines: list[str], errors: list[str]) -> None:
    """Prints what an audit found, and logs its report to the trackers of the run's training."""
    for number, line in enumerate([*lines, *errors]):
        click.echo(line, err=number >= len(lines))
    if "job" in report:
        text = json.dumps(report, indent=1).encode()
        with TemporaryDirectory() as folder:
            file = Path(folder, f"audit-{sha256(text).hexdigest()[:16]}.json")  # each audit its own name
            file.write_bytes(text)
            opt.log_artifacts(run, [file], "audit")


def _trainer_of(file: Path, run: "RunDirectory") -> Callable[[str], Any]:
    """The function that makes the trainer again. Runs the file."""
    if "advantages" not in run.program.late_spec():
        raise ConfigurationError("expected a run with declared advantages (GRPO, RLOO), got one without, for --rewards")
    if names := missing_of("finetune"):
        raise MissingExtra("finetune", names)
    with redirect_stdout(sys.stderr):
        made: Any = getattr(api.loader.import_file(file), "trainer", None)
    if not callable(made):
        raise ConfigurationError(f"expected a function trainer(output_dir) in {file}, got {made!r}")
    return made  # type: ignore[no-any-return]


def _rewards(run: "RunDirectory", file: Path, make: Callable[[str], Any], report: dict[str, Any]) -> str:
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        try:
            steps = api.sampled_rollouts.check_rewards(make(folder), run.path)
        except VerificationError as error:
            raise AuditFailure(f"{error}, signed by 0x{run.job.trainer.hex()}", [], "other rewards") from error
    report["rewards"] = {"file": str(file), "steps": steps}
    return f"rewards    computed again by {file} for steps 1 to {steps} of {run.job.steps}: the advantages follow"


def _late(run: "RunDirectory", report: dict[str, Any], step: int | None = None) -> list[str]:
    """Says who answers for late data. step: the last one that was checked, for a run with the state after it."""
    reads = step in run.kept() and api.reading.SAMPLED in run.program.state_spec()
    late = api.reading.late_words(run.program, run.identities(step) if reads and step is not None else None)
    report |= {"late_data": late} if late else {}
    return [f"{name:<10} {words}" for name, words in late.items()]


def _whole(trainer: "RunDirectory", output: Path, machine: Machine, report: dict[str, Any]) -> list[str]:
    done = api.audits.audit_whole(trainer, output, machine)
    comparison, head = done.comparison, done.head.head
    root = comparison.replayed.hex()
    report |= {"head": {"count": head.count, "run_root": head.run_root.hex()}, "kind": "whole"}
    report |= {"steps": [1, done.last_step], "replayed_root": root}
    report |= {"steps_resumed": done.resumed, "replay": str(output)}
    lines = _logs(done.log, report) if trainer.job.is_logged else []
    if not comparison.agrees:
        details = [f"  run root   expected {root}, got {comparison.committed.hex()}"]
        finder = f"`tiebreak dispute {trainer.path} {output}`"
        raise _failure(report, trainer, done.fraud, comparison.count, finder, details)
    api.audits.check_last_state(trainer, done.head)
    lines += _late(api.reading.open_directory(output), report, done.last_step)
    before = f", {done.resumed} of them replayed before" if done.resumed else ""
    agrees = f"agrees: {comparison.count} checkpoints, {done.last_step} steps{before}"
    return [f"run root {root}", f"replay     {output}", *lines, agrees]


def _failure(
    report: dict[str, Any], trainer: "RunDirectory", fraud: "SegmentReport | None", count: int, finder: str,
    details: list[str],
) -> AuditFailure:  # fmt: skip
    """Builds the failure: a sentence on the first difference of a run, and lines with the expected values."""
    if fraud is not None:
        committed, replayed = fraud.committed, fraud.replayed
        details = [*details, f"  record     expected {replayed.digest.hex()}, got {committed.digest.hex()}"]
        report["first_difference"] = {"checkpoint": fraud.checkpoint, "steps": [fraud.first_step, fraud.last_step]}
    details = [*details, f"  signed by  0x{trainer.job.trainer.hex()}"]
    return AuditFailure(api.audits.difference(fraud, count, finder), details)


def _parts(
    trainer: "RunDirectory", segment: int | None, steps: tuple[int | None, int | None], sample: int | None,
    seed: str | None, machine: Machine, workers: "api.audits.Workers | None", report: dict[str, Any],
) -> list[str]:  # fmt: skip
    drawn = secrets.token_hex(16) if seed is None else seed
    chosen, records, head = api.audits.choose_segments(
        trainer, segment=segment, first=steps[0], last=steps[1], sample=sample, seed=drawn
    )
    total, lines = len(records), list[str]()
    if sample is not None:
        detection = chances(total, sample)
        report |= {"seed": drawn, "detection": [{"false": x, "probability": p} for x, p in detection]}
        lines = [f"sample     {sample} of {total} segments, drawn from the seed {drawn} and the signed root"]
        shown = (f"{f'{x} false segments' if x > 1 else 'one false segment'}: {100 * p:.3g}%" for x, p in detection)
        lines.append(f"detection  {'; '.join(shown)}")
    report |= {"head": {"count": head.head.count, "run_root": head.head.run_root.hex()}}
    report |= {"kind": "segments" if sample is None else "sample", "wanted": list(chosen)}
    done = api.audits.audit_chosen(trainer, chosen, records, machine, workers=workers)
    report |= {
        "checked": [[r.checkpoint, r.first_step, r.last_step] for r in done.checked],
        "not_checked": done.total - len(done.checked),
        "started_after_steps": done.starts,
        "refused_states": done.refused,
        "steps_replayed": done.steps,
        "steps_resumed": done.resumed,
        "seconds": round(done.seconds, 3),
    }
    lines += _logs(done.log, report) if trainer.job.is_logged else []
    for step in done.refused:
        click.echo(f"warning: the state after step {step} is not what was committed; not used", err=True)
    if done.fraud is not None:
        finder = f"a dispute with the replay of a whole audit (`tiebreak audit {trainer.path}`)"
        raise _failure(report, trainer, done.fraud, total, finder, [])
    last = None
    if done.checked[-1].checkpoint == total - 1:
        api.audits.check_last_state(trainer, head)
        last = done.checked[-1].last_step
    lines += _late(trainer, report, last)
    return [*lines, *_words(done)]


def _logs(log: "LogReport", report: dict[str, Any]) -> list[str]:
    """Describes the result of following the logs. A finding proves no fraud, so it stands beside the verdict."""
    counts = {"entries": log.entries, "needed": log.needed, "elsewhere": log.elsewhere, "missing": log.missing}
    report["log"] = {"steps": log.steps, **counts, "findings": [str(finding) for finding in log.findings]}
    lines = [f"logs       {log.entries} entries in {log.steps} steps; {log.needed} were needed here"]
    others = (log.elsewhere, "have no effect"), (log.missing, "are missing and were computed exactly")
    lines += [f"           {count} {what}" for count, what in others if count]
    return [*lines, *(f"           {finding}" for finding in log.findings[:SHOWN])]


def _words(done: "SegmentAudit") -> list[str]:
    """Describes the steps that were checked and those that were not."""
    spans: list[list[int]] = []
    for report in done.checked:
        if spans and spans[-1][1] + 1 == report.first_step:
            spans[-1][1] = report.last_step
        else:
            spans.append([report.first_step, report.last_step])
    rate = f", {done.steps / done.seconds:.3g} a second" if done.seconds else ""
    left = done.total - len(done.checked)
    starts = [*map(str, done.starts[:SHOWN]), *(["..."] if len(done.starts) > SHOWN else [])]
    before = f", {done.resumed} of them before, as the ledger says" if done.resumed else ""
    return [
        f"replayed   {done.steps} steps{before}{rate}, from the states after steps {', '.join(starts)}",
        f"unchecked  {left} of {done.total} signed segments" if left else "unchecked  nothing that is signed",
        f"agrees: steps {', '.join(f'{first} to {last}' for first, last in spans)}",
    ]


# ---------------------------------------------------------------- losses alone


def _forward(
    trainer: "RunDirectory", sample: int, seed: str, machine: Machine, report: dict[str, Any], *, as_json: bool
) -> list[str]:
    found = api.forward.audit_forward(trainer, sample, seed, machine)
    report |= {
        "kind": "forward",
        "agrees": found.fraud is None,
        "seed": seed,
        "segments": found.segments,
        "drawable": found.drawable,
        "steps": [loss.step for loss in found.losses],
        "share_of_a_replay": found.replay,
        "seconds": found.seconds,
        "detection": [{"false": number, "probability": chance} for number, chance in found.detection],
    }
    steps = ", ".join(str(loss.step) for loss in found.losses[:20])
    shares = "; ".join(f"{number} false: {100 * chance:.3g}%" for number, chance in found.detection)
    lines = [
        f"drawn      steps {steps}{' ...' if len(found.losses) > 20 else ''}, from the seed {seed} and the signed root",
        f"drawable   the first steps of {found.drawable} of {found.segments} segments; of others no state was kept",
        f"cost       {100 * found.replay:.3g}% of a replay's operations, {found.seconds:.3g} s",
        f"detection  of false losses among the drawable: {shares}",
    ]
    if (fraud := found.fraud) is not None:
        click.echo("" if as_json else "\n".join([*lines, ""]), nl=False)
        raise AuditFailure(
            f"step {fraud.step}: expected loss {shown_loss(fraud.computed)}, which the state before it gives, got "
            f"{shown_loss(fraud.committed)}, signed by 0x{trainer.job.trainer.hex()}", [],
        )  # fmt: skip
    agrees = f"agrees     {len(found.losses)} losses, bit for bit; nothing is said of updates and other steps"
    return [*lines, agrees]
