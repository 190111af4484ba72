"""Refuses trainers with features that runs do not support, in one message that names all of them."""

import logging
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.training_args import ParallelMode

from tiebreak.engine.capture import four_bit
from tiebreak.protocol.errors import ConfigurationError

_SHARES: Final = (
    "a run's processes share batches, weights, gradients and moments anyway (tiebreak show RUN --workers N says how)"
)
_ARGUMENTS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "fp16": ((False,), "a loss scaled by what its gradients were has no program; use bf16"),
    "torch_compile": ((False,), "the step is captured and runs as a program; leave it out"),
    "neftune_noise_alpha": ((None, 0), "its noise depends on the padded length of a batch; leave it out"),
    "use_liger_kernel": ((False,), "the step is captured from PyTorch's own operators; leave it out"),
    "auto_find_batch_size": ((False,), "the batch size is part of the job; set per_device_train_batch_size"),
    "deepspeed": ((None,), f"{_SHARES}; leave it out, and offload nothing"),
    "fsdp": ((None, "", [], False), f"{_SHARES}; leave it out"),
    "parallelism_config": ((None,), f"{_SHARES}, but no features; leave it out, and start as many processes"),
    "debug": ((None, "", []), "its hooks read values in the step; leave it out"),
    "activation_offloading": ((False, None), "a run keeps all values in memory; leave it out"),
    "layer_offloading": ((False, None), "a run keeps all values in memory; leave it out"),
    "sync_ref_model": ((False,), "a reference model that moves in a callback is not part of the step"),
}
"""The values of each argument that have no effect, and the reason why others are refused."""
_OF_ROLLOUTS: Final[dict[str, tuple[tuple[Any, ...], str]]] = {
    "use_vllm": ((False,), "its weights are loaded by code that a run does not drive; let the trainer sample"),
    "use_transformers_continuous_batching": ((False,), "what it samples depends on the load; leave it out"),
    "rollout_func": ((None,), "rollouts of your own may have any form; let the trainer sample"),
    "tools": (([], None), "calls of tools are no part of what is followed; leave them out"),
    "environment_factories": ((None,), "environments are no part of what is followed; leave them out"),
    "_is_vlm": ((False,), "prompts with images have no fixed shape; give a tokenizer, and text"),
    "top_entropy_quantile": ((1.0,), "a quantile of a number of tokens that varies has no program; leave it out"),
    "use_adaptive_entropy": ((False,), "its coefficient reads results of earlier steps; set entropy_coef"),
    "aux_loss_enabled": ((False,), "a loss that balances experts counts padding too; set router_aux_loss_coef=0"),
}  # fmt: skip
"""The same for a trainer that samples from its model: its arguments, or else its attributes."""
_INSTEAD: Final = {
    "OnlineDPOTrainer": "its pairs are made within a step, of which no rollouts can be published; GRPOTrainer with "
    "num_generations=2 learns from two completions of each prompt, too, by the same reward_funcs",
    "PPOTrainer": "its loop and its value model are its own; GRPOTrainer and RLOOTrainer compare the completions of a "
    "prompt with each other in the place of a value model",
}
"""Trainers that sample and are not followed: why, and what to write instead."""
_OF_DDP: Final = (
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph"
)  # fmt: skip
_READING: Final = ("ReduceLROnPlateau", "GreedyLR")
_LOG: Final = logging.getLogger(__name__)
_LIBRARIES: Final = ("transformers.", "trl.", "peft.", "accelerate.", "axolotl.", "tiebreak.")


def check_trainer(trainer: Trainer) -> None:
    """Raises `ConfigurationError`, with all reasons, for a trainer whose steps a job could not be."""
    kinds = _of_processes, _of_trainer, _of_rollouts, _of_callbacks
    found = [*_of_arguments(trainer.args), *(reason for kind in kinds for reason in kind(trainer))]
    if found:
        listed = found[0] if len(found) == 1 else "".join(f"\n* {line}" for line in found)
        raise ConfigurationError(f"expected a trainer whose steps one program computes, got {listed}")


def _of_arguments(args: TrainingArguments) -> Iterator[str]:
    for name, (harmless, reason) in _ARGUMENTS.items():
        if (given := getattr(args, name, harmless[0])) not in harmless:
            yield f"{name}={given!r}: {reason}"
    kind = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    if kind in ("reduce_lr_on_plateau", "greedy"):
        yield f"lr_scheduler_type={kind!r}: it reads results; use one that depends on the step alone"
    if args.n_gpu > 1:
        yield (
            f"{args.n_gpu} GPUs in one process; start a process for each (torchrun --nproc-per-node {args.n_gpu}), or "
            "set CUDA_VISIBLE_DEVICES=0"
        )
    if args.mixed_precision not in ("no", "bf16" if args.bf16 else "no"):
        yield f"mixed precision {args.mixed_precision} from the environment; set bf16=True, or unset it"


def _of_processes(trainer: Trainer) -> Iterator[str]:
    held: Any = trainer
    count = held.args.world_size
    for name in ("fsdp", "deepspeed"):
        if getattr(held, f"is_{name}_enabled", False) and not getattr(held.args, name):
            yield f"{name} from accelerate's settings: {_SHARES}; start with torchrun, or set it off in them"
    if getattr(held, "is_distributed_loading_by_transformers", False):
        yield f"a model that from_pretrained has sharded: {_SHARES}; leave out distributed_config and tp_plan"
    if count > 1 and held.args.parallel_mode != ParallelMode.DISTRIBUTED:
        yield f"{count} processes that torch.distributed does not connect; start them with torchrun"
    if count > 1 and not held.args.average_tokens_across_devices:
        yield "average_tokens_across_devices=False: a loss by how examples are dealt to processes; leave it out"
    if count > 1 and samples(held):
        yield f"{type(held).__name__} in {count} processes: what one samples is published; start it without torchrun"


def _of_trainer(trainer: Trainer) -> Iterator[str]:
    held: Any = trainer
    for name in ("train_dataset", "eval_dataset"):
        if isinstance(getattr(held, name), DataLoader):
            yield f"a DataLoader as {name}: give `loader.dataset`, and its batch_size and collate_fn as arguments"
    if held.model_init is not None:
        yield "model_init: give the model itself"
    if type(held.lr_scheduler).__name__ in _READING:
        yield f"{type(held.lr_scheduler).__name__}: it reads results; use a schedule that depends on the step alone"
    method = getattr(getattr(held.model, "hf_quantizer", None), "quantization_config", None)
    if method is not None and not getattr(method, "load_in_4bit", False):
        name = getattr(method.quant_method, "value", method.quant_method)
        yield (
            f"a model quantized by {name}{' in 8 bits' * (name == 'bitsandbytes')}, whose codes a program does not "
            "unpack; load the base by BitsAndBytesConfig(load_in_4bit=True), or in bfloat16"
        )
    yield from four_bit.unsupported(held.model)
    version = getattr(sys.modules.get("trl"), "__version__", "1")
    if int(version.partition(".")[0]) < 1 and any(kind.__module__.startswith("trl.") for kind in type(held).__mro__):
        yield f"a trainer of TRL {version}, whose losses read values as TRL 1 does not: pip install -U trl"
    if _is_users(_owner(held, "training_step")):
        yield "a training_step of your own, which a run never calls: put what it computes into compute_loss"
    kinds = {type(held), *map(type, held.model.modules())}
    if any("unsloth" in f"{kind.__module__} {_owner(kind, 'forward')}".lower() for kind in kinds):
        yield (
            "a model or a trainer of Unsloth, whose kernels are no operators of PyTorch: load the same base with "
            "AutoModelForCausalLM, and give it the same LoRA with peft"
        )


def _of_rollouts(trainer: Any) -> Iterator[str]:
    if instead := [_INSTEAD[kind.__name__] for kind in type(trainer).__mro__ if kind.__name__ in _INSTEAD]:
        yield f"{type(trainer).__name__}: {instead[0]}"
    elif not samples(trainer) and (
        type(trainer)._prepare_inputs is not Trainer._prepare_inputs
        or _owner(trainer, "training_step").startswith("trl.experimental.")
    ):
        yield (
            f"{type(trainer).__name__}, which prepares inputs with the model of the moment: of such trainers, "
            "GRPOTrainer and RLOOTrainer are followed"
        )
    for name, (harmless, reason) in _OF_ROLLOUTS.items() if samples(trainer) else ():
        if (given := getattr(trainer.args, name, getattr(trainer, name, harmless[0]))) not in harmless:
            yield f"{name.strip('_')}={given!r}: {reason}"


def samples(trainer: Any) -> bool:
    """Whether the trainer's micro-batches are samples from its model, as TRL's trainers for GRPO and RLOO make them."""
    known = {
        f"{name}.{what}" for name in ("GRPOTrainer", "RLOOTrainer") for what in ("training_step", "_prepare_inputs")
    }
    return {type(trainer).training_step.__qualname__, type(trainer)._prepare_inputs.__qualname__} <= known


def _owner(holder: Any, method: str) -> str:
    """The name of the module that defines a method's code; empty if there is none."""
    bound = getattr(holder, method, None)
    return str(getattr(getattr(bound, "__func__", bound), "__module__", ""))


def logs_in_loss(trainer: Trainer) -> bool:
    """Whether the source of a user-defined trainer calls `log`."""
    own = [value for kind in type(trainer).__mro__ if _is_users(kind.__module__) for value in vars(kind).values()]
    return any("log" in code.co_names for value in own if (code := getattr(value, "__code__", None)))


def _is_users(module: str) -> bool:
    return not f"{module}.".startswith(_LIBRARIES)


def _of_callbacks(trainer: Trainer) -> Iterator[str]:
    held: Any = trainer
    for callback in held.callback_handler.callbacks:
        for event in ("on_pre_optimizer_step", "on_optimizer_step"):
            own = getattr(type(callback), event) is not getattr(TrainerCallback, event)
            if own and _is_users(type(callback).__module__):
                yield (
                    f"{type(callback).__name__}.{event}: there are no gradients in the module then; what it does to "
                    "them belongs into the loss, and what it reads of the weights into on_step_end"
                )


def say_of_processes(trainer: Trainer) -> None:
    """Warns of what differs from DDP, and of its settings, which do nothing."""
    held: Any = trainer
    if held.args.world_size == 1:
        return
    if given := [name for name in _OF_DDP if getattr(held.args, name, None) is not None]:
        _LOG.warning("%s: there is no DDP, since a run has exchanges of its own; it does nothing", ", ".join(given))
    if any(isinstance(module, BatchNorm) for module in held.model.modules()):
        _LOG.warning("batch normalisation is over the batch of all processes, as SyncBatchNorm's; DDP's is over each's")


def warn_of_unread(args: TrainingArguments, read: set[str]) -> None:
    """Warns of user-defined arguments that are set but were never read while the data were recorded."""
    fresh = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(args)}
    kinds = [kind for kind in type(args).__mro__ if _is_users(kind.__module__)]
    own = {name for kind in kinds for name in vars(kind).get("__annotations__", {})}
    set_by_user = {n for n in own & fresh.keys() if getattr(args, n, None) != fresh[n]}
    if unread := sorted(set_by_user - {f.name for f in fields(TrainingArguments)} - read):
        warnings.warn(
            f"nobody has read {', '.join(unread)} of {type(args).__name__} while the step was prepared: if a callback "
            "does not, they do nothing",
            stacklevel=4,
        )
