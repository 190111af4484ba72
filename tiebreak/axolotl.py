"""A plugin of Axolotl: with `plugins: [tiebreak.axolotl.TiebreakPlugin]` in its YAML, training is a run."""

from typing import Any

from axolotl.integrations.base import BasePlugin
from transformers import set_seed

from tiebreak.api.huggingface.hf_training import train


class TiebreakPlugin(BasePlugin):  # type: ignore[misc]  # Axolotl may be missing where types are checked
    """Lets `tiebreak.hf.train` stand in for `train` of the trainer that Axolotl makes."""

    def pre_lora_load(self, cfg: Any, model: Any) -> None:  # noqa: ARG002
        set_seed(cfg.seed)  # Axolotl draws adapters anew each time: no run could go on with them

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:  # noqa: ARG002
        trainer.train = lambda *args, **options: train(trainer, *args, **options)
