"""Words that the parts of `benchmarks.logged` write and its page reads. None has a comma, which separates words."""

from typing import Final

from tiebreak.protocol.program.rounding import SumKind

KINDS: Final = {kind: kind.name.lower() for kind in SumKind}
CALIBRATED: Final = "calibrated"
PROVEN: Final = "proven"
BFLOAT16: Final = 16
WITHOUT: Final = "without the log"
REORDERED: Final = "another order of the data"
WITH: Final = "with the log"
EAGER: Final = "eager FP32"
AUTOCAST: Final = "bf16 autocast"
EXACT: Final = "exact"
TRAINER: Final = "logged trainer"
AUDITOR: Final = "logged auditor"
PERMUTED: Final = "logged auditor permuted"
LOSS: Final = "training loss over the last 20 steps"
