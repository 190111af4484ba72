"""GPT-2 from Hugging Face's transformers, trained on text that comes with Python.

    python examples/finetune_gpt2.py --layers 12 --channels 768 --heads 12 --steps 100     # GPT-2 small

To start from trained weights, load them into the model before `tiebreak.train`; they become the run's initial state.
"""

import argparse
from collections.abc import Sequence
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import tiebreak

BYTES = 256


def loss(model: nn.Module, window: Tensor) -> Tensor:
    """Mean cross entropy of each byte after the first. window: int64 [B, T + 1]."""
    logits = model(input_ids=window[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def main(arguments: Sequence[str] | None = None) -> tiebreak.Run:
    parser = argparse.ArgumentParser(description="GPT-2 on the text of Python's own documentation")
    parser.add_argument("--directory", default="runs/gpt2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    options = parser.parse_args(arguments)

    text = torch.tensor(list("".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.int64)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=BYTES, n_positions=options.context, n_layer=options.layers, n_embd=options.channels,
            n_head=options.heads, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip

    run = tiebreak.train(
        model,
        loss,
        optimizer=tiebreak.AdamW(lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
        schedule=tiebreak.linear(options.steps, warmup=options.steps // 10),
        clip=tiebreak.Clip(norm=1.0),
        data={"text": text},
        batch=tiebreak.Batch(
            size=options.batch,
            examples=tiebreak.Windows(name="text", length=options.context + 1, stride=options.context),
        ),
        steps=options.steps,
        directory=options.directory,
    )

    model.load_state_dict(run.state_dict())
    print(f"loss {run.losses[0]:.3f} -> {run.losses[-1]:.3f}")
    print(f"run root {run.root}")
    return run


if __name__ == "__main__":
    main()
