"""Keeps from a process what transformers, peft and TRL would load and its tests do not use; imported before them."""

import sys

vars(sys)["modules"] |= dict.fromkeys(("bitsandbytes", "mlflow", "wandb"))
