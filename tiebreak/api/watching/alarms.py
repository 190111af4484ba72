"""Samples that a worker measures of itself while it trains, and rules that raise alarms over them, never a verdict.

Kang et al. (2023) have three rules for losses, utilisation and memory; the others are ours. A worker can make up all
that it says, such as by repeating what another run measured. So a rule that holds proves nothing, and one that does
not is a reason to audit. Lines are a stranger's: each is bounded and checked. Pages use this, so nothing here imports
torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.numbers.float32 import to_float

MONITOR: Final = "monitor.jsonl"
NOTE: Final = (
    "told by the worker itself: an alarm is a reason to audit, never a verdict, and without one nothing is proven"
)
ALPHA: Final = 0.4
"""The least share of the samples of utilisation that must be at or above their mean (Kang et al.)."""
MIN_SAMPLES: Final = 10
"""The least number of samples that the rules judge."""
STEADY: Final = 0.1
"""Memory counts as steady if it moves by no more than this share of the most that was held."""
SILENCE: Final = 180.0
"""Seconds of silence that are no alarm, however short the steps are: three times as rare as samples become."""
SLOWER: Final = 10
"""The factor over the usual time between samples for which a worker may be silent."""
RATE: Final = 2.0
"""The factor by which a step may be slower or faster than declared."""
MAX_LINE: Final = 512
_BITS: Final = re.compile(r"[0-9a-f]{8}")


class WorkerStanding(StrEnum):
    HOLDS = "holds"
    ALARM = "ALARM"
    OPEN = "open"
    """It cannot be judged, or not yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The standing of a rule, and the reason as text, with untrusted strings in it as `repr`."""

    name: str
    standing: WorkerStanding
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """A process begins, or goes on, after a step. time: seconds since 1970, by the worker's clock, as in samples."""

    job: str
    step: int
    time: float
    machine: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The measurements of a process after a step. Shares are from 0 to 1, memory is in bytes; None: not known.

    loss_bits: the step's loss, as the 32 bits of an FP32 number; None in the sample before the first step. processor:
    the time of the process since the sample before, as a share of the cores that it may use; machine: of all cores, by
    all processes. memory: held by the process at that moment; gpu_memory: held on the device, by all processes.
    """

    step: int
    time: float
    loss_bits: int | None = None
    processor: float | None = None
    machine: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    watts: float | None = None


def as_line(line: ProcessStart | Sample) -> bytes:
    """The line of a file. Fields that are not known are left out."""
    found = {name: getattr(line, name) for name in type(line).__slots__}
    if isinstance(line, Sample) and line.loss_bits is not None:
        found["loss_bits"] = f"{line.loss_bits:08x}"
    return (json.dumps({name: value for name, value in found.items() if value is not None}) + "\n").encode()


def read_line(raw: bytes) -> ProcessStart | Sample:
    """Decodes an untrusted line. Raises `EncodingError`, which names the error."""
    if len(raw) > MAX_LINE:  # a deeply nested one could exhaust the C stack of the parser
        raise EncodingError(f"expected at most {MAX_LINE} bytes, got more")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"expected a JSON object, got {raw[:40]!r}") from error
    if not isinstance(found, dict):
        raise EncodingError(f"expected a JSON object, got {raw[:40]!r}")
    step, time = _number(found, "step", 1 << 64, whole=True), _number(found, "time", 1 << 40)
    if step is None or time is None:
        raise EncodingError("expected a step and a time, got none")
    if "job" in found:
        machine = found.get("machine", {})
        if not isinstance(machine, dict) or not all(isinstance(value, str) for value in machine.values()):
            raise EncodingError("expected a machine in words, got something else")
        return ProcessStart(job=str(found["job"]), step=int(step), time=time, machine=machine)
    if (bits := found.get("loss_bits")) is not None and not (isinstance(bits, str) and _BITS.fullmatch(bits)):
        raise EncodingError(f"expected loss_bits of 8 hex digits, got {bits!r}")
    memory, gpu_memory = (_number(found, name, 1 << 64, whole=True) for name in ("memory", "gpu_memory"))
    return Sample(
        step=int(step), time=time, loss_bits=None if bits is None else int(bits, 16),
        processor=_number(found, "processor", 1), machine=_number(found, "machine", 1), gpu=_number(found, "gpu", 1),
        memory=None if memory is None else int(memory), gpu_memory=None if gpu_memory is None else int(gpu_memory),
        watts=_number(found, "watts", 1 << 20),
    )  # fmt: skip


def _number(found: Mapping[str, Any], name: str, most: int, *, whole: bool = False) -> float | None:
    if (value := found.get(name)) is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise EncodingError(f"expected a {'whole ' if whole else ''}number as {name}, got {value!r}")
    if not 0 <= value <= most:  # nor is NaN; `isfinite` would raise for a whole number that no float holds
        raise EncodingError(f"expected {name} of 0 to {most}, got {value!r}")
    return value if whole else float(value)


# ---------------------------------------------------------------- rules


@dataclass(slots=True)
class Troubles:
    """Problems of one rule, as text: the first three, and the number of all."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def note(self, text: str) -> None:
        """Adds one, unless it is empty."""
        self.count += bool(text)
        if text and len(self.first) < 3:
            self.first.append(text)

    def rule(self, name: str, otherwise: str, *, judged: bool = True) -> Rule:
        """An alarm if there was any trouble, else a rule with the text `otherwise`."""
        if not self.count:
            return Rule(name=name, standing=WorkerStanding.HOLDS if judged else WorkerStanding.OPEN, text=otherwise)
        more = f"; and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return Rule(name=name, standing=WorkerStanding.ALARM, text="; ".join(self.first) + more)


def losses_rule(told: int, last: int, steps: int, *, is_over: bool) -> Rule:
    """The paper's first: N = E x I losses are logged, here one for each step of the job.

    told: the number of steps of the job that have a loss. last: the last of them.
    """
    expected = steps if is_over else last
    text = f"{told} losses of {steps} steps"
    if not told:
        return Rule(name="losses", standing=WorkerStanding.OPEN, text="none is told here")
    if told < expected:
        text = f"expected {expected} losses, got {told}"
    return Rule(name="losses", standing=WorkerStanding.ALARM if told < expected else WorkerStanding.HOLDS, text=text)


def utilisation_rule(samples: Sequence[Sample]) -> Rule:
    """The paper's second: at least a share alpha of the samples is above their mean; of the GPU where there is one.

    Here a sample at the mean counts, too: otherwise a machine that is always busy would raise it.
    """
    what = "gpu" if any(sample.gpu is not None for sample in samples) else "processor"
    values = [value for sample in samples if (value := getattr(sample, what)) is not None]
    if len(values) < MIN_SAMPLES:
        return _few("utilisation", len(values))
    mean = fmean(values)
    share = sum(value >= mean for value in values) / len(values)
    text = f"{100 * share:.0f}% of {len(values)} samples of the {what} are at or above their mean of {100 * mean:.0f}%"
    if share < ALPHA:
        text += f", expected {100 * ALPHA:.0f}%"
    return Rule(name="utilisation", standing=WorkerStanding.ALARM if share < ALPHA else WorkerStanding.HOLDS, text=text)


def memory_rule(samples: Sequence[Sample]) -> Rule:
    """The paper's third: memory rises steeply and then stays. Samples of one process, the first before its first step.

    It has risen after a tenth of the samples, or three; if there is a GPU, it is the GPU's.
    """
    what = "gpu_memory" if any(sample.gpu_memory is not None for sample in samples) else "memory"
    values = [value for sample in samples if (value := getattr(sample, what)) is not None]
    if len(values) < MIN_SAMPLES:
        return _few("memory", len(values))
    most, risen = max(values), max(3, len(values) // 10)
    moves = [abs(b - a) for a, b in pairwise(values[risen:])]
    text = f"rose from {_size(values[0])} to {_size(values[risen])} and then moved by {_size(max(moves))} at most"
    late = max(values[risen:]) - max(values[: risen + 1])
    if max(moves) > STEADY * most or late > STEADY * most or values[risen] <= values[0]:
        text += f", expected a rise that is over by sample {risen + 1}, and then {_size(STEADY * most)} at most"
        return Rule(name="memory", standing=WorkerStanding.ALARM, text=text)
    return Rule(name="memory", standing=WorkerStanding.HOLDS, text=text)


def rate_rule(samples: Sequence[Sample], step_seconds: float | None) -> Rule:
    """The rate fits the machine that was declared: a step takes half to twice the seconds it should take there."""
    pairs = pairwise(samples)
    found = [(b.time - a.time) / (b.step - a.step) for a, b in pairs if b.step > a.step and b.time > a.time]
    if len(found) < MIN_SAMPLES - 1:
        return _few("rate", len(found) + 1)
    seconds = median(found)
    if step_seconds is None:
        text = f"{seconds:.3g} s a step; a job declares no rate, so say what its machine should take"
        return Rule(name="rate", standing=WorkerStanding.OPEN, text=text)
    fits = step_seconds / RATE <= seconds <= step_seconds * RATE
    text = f"{seconds:.3g} s a step, {step_seconds:.3g} s were declared"
    return Rule(name="rate", standing=WorkerStanding.HOLDS if fits else WorkerStanding.ALARM, text=text)


def silence_rule(samples: Sequence[Sample], since: float, now: float, *, is_over: bool) -> Rule:
    """An alarm if the worker was silent for longer than usual, before now or between two samples of one process.

    since: seconds by the same clock at which something was heard last, or listening began.
    """
    gaps = [b.time - a.time for a, b in pairwise(samples)]
    limit = max(SILENCE, SLOWER * median(gaps)) if gaps else SILENCE
    longest, quiet = max(gaps, default=0.0), 0.0 if is_over else now - since
    if max(longest, quiet) > limit:
        text = f"nothing for {quiet:.0f} s" if quiet > limit else f"once nothing for {longest:.0f} s"
        return Rule(name="silence", standing=WorkerStanding.ALARM, text=f"{text}, expected {limit:.0f} s at most")
    if not gaps:
        return Rule(name="silence", standing=WorkerStanding.OPEN, text="too few samples are told here")
    text = f"{longest:.0f} s at most; the run is over" if is_over else f"for {max(quiet, 0):.0f} s"
    return Rule(name="silence", standing=WorkerStanding.HOLDS, text=text)


def shown_loss(bits: int) -> str:
    """A loss, and its bits in hex: two losses can read alike."""
    return f"{to_float(bits):.9g} ({bits:#010x})"


def _few(name: str, count: int) -> Rule:
    return Rule(name=name, standing=WorkerStanding.OPEN, text=f"expected {MIN_SAMPLES} samples or more, got {count}")


def _size(count: float) -> str:
    return f"{count / (1 << 20):.1f} MiB"
