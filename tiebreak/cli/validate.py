"""`tiebreak validate`: recomputes the losses of drawn steps. Exit codes are those of `tiebreak audit`."""

import json
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.api.watching.alarms import shown_loss
from tiebreak.cli.audit import COULD_NOT_CHECK
from tiebreak.cli.options import FOLDER, json_option, machine_options
from tiebreak.protocol.errors import CannotCheck, VerificationError

if TYPE_CHECKING:
    from tiebreak.api.auditing.validating import Validation


class _Share(click.ParamType[float]):
    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,4})?)%", str(value))
        if found is None or not 0 < float(found[1]) <= 100:
            self.fail(f"expected a share above 0% and up to 100%, such as 10%, got {value!r}", param, ctx)
        return float(found[1]) / 100


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--share", type=_Share(), default="10%", show_default=True, help="Share of the steps that can be drawn.")
@click.option("--seed", help="Seed of the sample. Keep it secret until the head is signed.  [default: a new one]")
@click.option("--epochs", is_flag=True, help="Also look at each segment as Kang et al. (2023) do at epochs.")
@machine_options("threads", "permute", "device")
@json_option
def validate(run: Path, share: float, seed: str | None, epochs: bool, machine: Machine, as_json: bool) -> int:
    """Recompute the committed losses of drawn steps of RUN by the forward part alone, bit for bit.

    A cheap look before, or instead of, an audit. A step can be drawn if RUN holds the states before it and at the end
    of its segment; states that the trainer did not keep are the trainer's choice, and it is said how many they are. A
    loss with other bits than committed is fraud, and an audit or a dispute proves it. A lie that leaves the losses of
    drawn steps true is not seen: a false update, or any step that was not drawn. `tiebreak audit --sample` sees these.

    With --epochs, it also does the paper's check: the mean loss on n% of each segment's batches with the weights at
    its end, within 100 sigma / n of what was reported. It is never a verdict.

    Exit codes: 0 agrees, 2 fraud, 3 could not be checked (withheld or damaged), 1 asked for what is not there.
    """
    drawn = secrets.token_hex(16) if seed is None else seed
    opened = api.runs.open_directory(run)
    try:
        found = api.validating.validate(opened, share, drawn, machine, epochs=epochs)
    except CannotCheck as error:
        click.echo(f"{type(error).__name__}: {' '.join(str(error).split())}", err=True)
        return COULD_NOT_CHECK
    click.echo(json.dumps(_document(found, drawn)) if as_json else "\n".join(_words(found, drawn)))
    if (fraud := found.fraud) is not None:
        raise VerificationError(
            f"step {fraud.step}: expected loss {shown_loss(fraud.computed)}, which the state before it gives, got "
            f"{shown_loss(fraud.committed)}, signed by 0x{opened.job.trainer.hex()}"
        )
    return 0


def _document(found: "Validation", seed: str) -> dict[str, Any]:
    return {
        "agrees": found.fraud is None,
        "seed": seed,
        "segments": found.segments,
        "drawable": found.drawable,
        "steps": [look.step for look in found.looks],
        "share_of_a_replay": found.replay,
        "seconds": found.seconds,
        "detection": [{"false": number, "probability": chance} for number, chance in found.detection],
        "epochs": [
            {"segment": look.segment, "reported": look.reported, "computed": look.computed,
             "threshold": look.threshold, "passes": look.passes} for look in found.epochs
        ],
        "epochs_share_of_a_replay": found.epoch_replay,
        "epochs_seconds": found.epoch_seconds,
    }  # fmt: skip


def _words(found: "Validation", seed: str) -> list[str]:
    steps = ", ".join(str(look.step) for look in found.looks[:20])
    chances = "; ".join(f"{number} false: {100 * chance:.3g}%" for number, chance in found.detection)
    lines = [
        f"drawn      steps {steps}{' ...' if len(found.looks) > 20 else ''}, from the seed {seed} and the signed root",
        f"drawable   the first steps of {found.drawable} of {found.segments} segments; of others no state was kept",
        f"cost       {100 * found.replay:.3g}% of a replay's operations, {found.seconds:.3g} s",
        f"detection  of false losses among the drawable: {chances}",
    ]
    lines += [
        f"segment {look.segment:<3}mean loss {look.reported:.6g} reported, {look.computed:.6g} computed, within "
        f"{look.threshold:.3g}: {'passes' if look.passes else 'ALARM'}"
        for look in found.epochs
    ]
    if found.epochs:
        cost = f"{100 * found.epoch_replay:.3g}% of a replay's operations, {found.epoch_seconds:.3g} s"
        lines.append(f"epochs     {cost}; what is false by less is never seen, and an alarm is no verdict")
    if found.fraud is None:
        lines.append(f"agrees     {len(found.looks)} losses, bit for bit; nothing is said of updates and other steps")
    return lines
