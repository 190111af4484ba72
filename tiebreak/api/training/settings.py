"""Settings of a fine-tuning job, and of what a folder was made with. Nothing here needs torch or transformers."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiebreak.api.training import rows
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.protocol.errors import ConfigurationError, VerificationError, own_file
from tiebreak.protocol.strict_json import MAX_NESTING, parse_json

TUNING: Final = "finetune.json"
"""The file, in the folder of a run, with the settings of its fine-tuning job."""
BITSANDBYTES: Final = "bitsandbytes"
LOSSES: Final = "evaluation.jsonl"
"""The unsigned file, in the run's folder, of losses on held-out rows."""
MAX_FILE_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """The settings of a job, as `tiebreak finetune --help` says. The same ones on the same files give the same job."""

    model: Path
    data: Path
    evaluation: Path | None = None
    lora: int = 16
    alpha: int | None = None
    targets: str = "all-linear"
    dropout: float = 0.0
    dtype: str = "auto"
    epochs: float | None = None
    steps: int | None = None
    length: int = 1024
    batch: int = 1
    accumulation: int = 1
    rate: float = 2e-4
    schedule: str = "cosine"
    warmup: int | None = None
    beta: float = 0.1
    checkpoints: int = 10
    seed: int = 0

    def check(self, run: Path) -> "Prepared":
        """Reads the rows, each file once, and checks all that is quick: the model's settings, and those of a run there.

        Raises `ConfigurationError` for the first invalid setting.
        """
        if not (self.model / "config.json").is_file():
            raise ConfigurationError(
                f"expected a folder with a model's config.json, got {self.model}; download the model first "
                "(`hf download NAME --local-dir FOLDER`)"
            )
        if self.epochs is not None and self.steps is not None:
            raise ConfigurationError(f"expected --epochs or --steps, got both: {self.epochs:g} and {self.steps}")
        most = positions(self.model)
        if 0 < most < self.length:
            raise ConfigurationError(
                f"expected a length of at most {most} tokens, the positions of {self.model}, got {self.length}"
            )
        remembered = self.remembered()
        check_unchanged(run / TUNING, remembered)
        evaluation = None if self.evaluation is None else rows.read(self.evaluation)
        return Prepared(self, remembered, rows.read(self.data), evaluation)

    def remembered(self) -> dict[str, Any]:
        """The settings that decide the run, by name."""
        found = {name: value for name, value in asdict(self).items() if name not in ("model", "data", "evaluation")}
        found["epochs"] = 1.0 if self.epochs is None and self.steps is None else self.epochs
        found["alpha"] = self.alpha or 2 * self.lora
        paths = {"model's config.json": self.model / "config.json", "data": self.data}
        return found | {f"{name} (SHA-256)": rows.digest(path) for name, path in paths.items()}


class Prepared(NamedTuple):
    """The settings of a job, those that a run remembers, and the rows."""

    settings: FineTuning
    remembered: dict[str, Any]
    training: rows.ReadRows
    evaluation: rows.ReadRows | None

    @property
    def measured(self) -> dict[str, Any]:
        """The words of an evaluation on the rows that are not learnt (`measured_on`)."""
        assert self.settings.evaluation is not None
        return measured_on(self.settings.evaluation, self.settings.length, self.settings.batch)


def measured_on(data: Path, length: int, batch: int) -> dict[str, Any]:
    """The words of an evaluation's maker on what it scored."""
    return {"rows": data.name, "rows (SHA-256)": rows.digest(data), "length": length, "batch": batch}


def quantization(model: Path) -> str:
    """The method by which a model in a folder is quantized, as its configuration says; empty if it is not."""
    found = _configuration(model).get("quantization_config") if (model / "config.json").is_file() else None
    return str(found.get("quant_method", BITSANDBYTES)) if isinstance(found, dict) else ""


def positions(model: Path) -> int:
    """The number of tokens that a model has positions for, longer by what its configuration stretches; 0: no limit."""
    with suppress(ValueError, TypeError, AttributeError, OverflowError):
        config = (whole := _configuration(model)).get("text_config") or whole
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        count = config.get("max_position_embeddings") or config.get("n_positions") or 0
        return int(count * (scaling.get("factor") or 1))
    return 0


def _configuration(model: Path) -> dict[str, Any]:
    with own_file(), suppress(ValueError):  # transformers says what is wrong with it
        found = parse_json(read_file(model / "config.json", MAX_FILE_BYTES), MAX_NESTING)
        return found if isinstance(found, dict) else {}
    return {}


def check_unchanged(path: Path, settings: Mapping[str, object]) -> None:
    """Raises `ConfigurationError` if the folder of a file of `remember` was made with another setting."""
    found: Any = {}
    with suppress(ValueError, VerificationError):  # another file, or none: the run's roots are compared in any case
        found = parse_json(read_file(path, MAX_FILE_BYTES), MAX_NESTING)
    for name, value in json.loads(json.dumps(settings)).items():
        if isinstance(found, dict) and name in found and found[name] != value:
            raise ConfigurationError(
                f"{path.parent} was made with {name} {found[name]}, got {value}; go on with what it was made with, or "
                "start afresh: choose another directory, or delete this one"
            )


def remember(path: Path, settings: Mapping[str, object]) -> None:
    """Writes the settings into an unsigned file of the folder, by which later refusals can name the difference."""
    write_file(path, json.dumps(settings, indent=1).encode())


def evaluations(run: Path) -> dict[int, float]:
    """The finite losses of the run in a folder on rows that are not learnt, by step."""
    path, found = run / LOSSES, dict[int, float]()
    for line in path.read_text("utf-8", "replace").splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError, KeyError, OverflowError):  # a stranger's line, or one cut short
            one = parse_json(line.encode(), 1)
            found |= {one["step"]: one["loss"]} if isfinite(one["loss"]) else {}
    return found
