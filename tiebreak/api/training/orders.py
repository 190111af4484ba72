"""Orders of fine-tuning in the words of OpenAI's interface, as settings of `tiebreak finetune`. Nothing needs torch.

The same order for the same files gives the same job, on the service's machine and on its customer's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiebreak.api.training.rows import is_preference
from tiebreak.api.training.settings import FineTuning, positions
from tiebreak.protocol.errors import ConfigurationError

AUTO: Final = {"n_epochs": 3, "batch_size": 1, "learning_rate_multiplier": 1.0, "beta": 0.1}
"""Hyperparameters, and what `auto` is for each. The last one is of method `dpo` alone."""
RATE: Final = 2e-4
"""The learning rate of multiplier 1."""
MAX_LENGTH: Final = 1024
CHECKPOINTS: Final = 100
"""The least number of checkpoints: each is signed, so a customer replays small shares of a job."""
MOST: Final = {"n_epochs": 50, "batch_size": 256, "learning_rate_multiplier": 1000, "beta": 1000}
"""The most that each may be; so an order in a stranger's words cannot take all memory."""
_BYTES_A_TOKEN: Final = 16
"""The bytes of a file for a token of a window, so that it has several windows, whatever the tokenizer."""


def hyperparameters(order: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a request or of a job, each with its value in place of `auto`."""
    method = order.get("method") or {}
    given = order.get("hyperparameters") or {}
    given = given | ((method.get(method.get("type", "")) or {}).get("hyperparameters") or {})
    names = [name for name in AUTO if name != "beta" or method.get("type") == "dpo"]
    return {name: AUTO[name] if given.get(name, "auto") == "auto" else given[name] for name in names}


def settings_of(order: Mapping[str, Any], model: Path, data: Path, evaluation: Path | None = None) -> FineTuning:
    """The settings of an order, with its seed, for these files. Raises `ConfigurationError`."""
    found, seed = hyperparameters(order), order.get("seed")
    if not isinstance(seed, int):
        raise ConfigurationError(f"expected an order with its seed, which the service names, got {seed}")
    for name, value in found.items():
        kinds = (int,) if name == "batch_size" else (int, float)
        if type(value) not in kinds or not 0 < value <= MOST[name]:
            raise ConfigurationError(f"expected a number up to {MOST[name]} for {name}, got {str(value)[:80]!r}")
    if is_preference(data) != (wanted := "beta" in found):
        raise ConfigurationError(f"training_file: expected rows {'' if wanted else 'not '}of preferences, got others")
    most = positions(model) or MAX_LENGTH
    length = min(MAX_LENGTH, most, max(8, 1 << (data.stat().st_size // _BYTES_A_TOKEN).bit_length() - 1))
    return FineTuning(
        model=model, data=data, evaluation=evaluation, epochs=float(found["n_epochs"]), batch=found["batch_size"],
        rate=RATE * found["learning_rate_multiplier"], seed=seed, length=length,
        checkpoints=CHECKPOINTS, beta=float(found.get("beta", AUTO["beta"])),
    )  # fmt: skip
