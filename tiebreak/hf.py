"""Hugging Face trainers, whose runs anyone can check: `tiebreak.hf.train(trainer)` in the place of `trainer.train()`.

For a script that calls `train` itself, `python -m tiebreak.hf SCRIPT ...` or `python -m tiebreak.hf -m MODULE ...`
(LLaMA-Factory: `-m llamafactory.cli train x.yaml`) runs it with `install` in force.
"""

import runpy
import sys

from tiebreak.api.huggingface.hf_evaluation import evaluate
from tiebreak.api.huggingface.hf_training import train
from tiebreak.api.huggingface.rewards import ExactMatch, Length, NumberMatch, RewardModel, reward_kinds
from tiebreak.api.huggingface.sampled_rollouts import check_rewards
from tiebreak.api.training.trackers import log_artifacts

# isort: split
from transformers import Trainer

__all__ = [
    "ExactMatch", "Length", "NumberMatch", "RewardModel", "check_rewards", "evaluate", "install", "log_artifacts",
    "reward_kinds", "train",
]  # fmt: skip


def install() -> None:
    """Makes `train` of every `transformers.Trainer` of this process `tiebreak.hf.train`."""
    if Trainer.train is not train:
        vars(train)["original"] = Trainer.train
        Trainer.train = train  # type: ignore[method-assign,assignment]


def main() -> None:
    """Runs a script or a module as Python does, after `install`."""
    _, *arguments = sys.argv
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
