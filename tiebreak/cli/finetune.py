"""`tiebreak finetune`: from a model and conversations to a certified adapter."""

import shlex
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli.key import load_key, new_key
from tiebreak.cli.options import FILE, FOLDER, json_option, machine_options, number, tell
from tiebreak.engine.data.disk import make_folder, read_file, write_file
from tiebreak.protocol.errors import ConfigurationError

MAX_CONFIG_BYTES: Final = 1 << 16


def _configure(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Makes the fields of a YAML file the defaults of the options of the same names."""
    if path is None:
        return
    try:
        found = yaml.safe_load(read_file(path, MAX_CONFIG_BYTES))
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigurationError(f"{path}: expected YAML, got: {error}") from error
    known = {name for one in context.command.params if (name := one.name) and name not in ("config", "as_json")}
    if not isinstance(found, dict) or not found.keys() <= known:
        wrong = sorted(map(str, found.keys() - known)) if isinstance(found, dict) else type(found).__name__
        raise ConfigurationError(f"{path}: expected fields among {', '.join(sorted(known))}, got {wrong}")
    for name, value in found.items():
        if isinstance(value, dict | list | set):
            raise ConfigurationError(f"{path}: expected one value for {name}, got a {type(value).__name__}")
    context.default_map = {name: str(value) for name, value in found.items() if value is not None}


@click.command()
@click.option("--config", type=FILE, callback=_configure, is_eager=True, expose_value=False,
              help="YAML file with any of these options by name; options of the command line override it.")  # fmt: skip
@click.option("--model", type=FOLDER, required=True, help="Folder of a model and its tokenizer (`save_pretrained`).")
@click.option("--data", type=FILE, required=True, help="JSON lines with `messages` (role and content) or `text`.")
@click.option("--output", "-o", type=click.Path(file_okay=False, path_type=Path), required=True,
              help="Folder for run, adapter and key; what is there already is continued.")  # fmt: skip
@number("--lora", 1, None, 16, "Rank of the adapters, which are on all linear layers.")
@click.option("--steps", type=click.IntRange(1), help="Steps of training.  [default: one pass over the data]")
@number("--length", 2, None, 1024, "Tokens in a window; conversations are packed into windows one after the other.")
@number("--batch", 1, None, 1, "Windows in a batch.")
@number("--accumulation", 1, None, 1, "Batches whose gradients are summed in a step.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=2e-4, show_default=True, help="Learning rate.")
@number("--seed", 0, (1 << 64) - 1, 0, "Seed of the adapters' first weights and of the order of the windows.")
@click.option("--key", type=FILE, help="Key file that signs the run.  [default: key.pem in OUTPUT, made if need be]")
@click.option("--keep", default="last", show_default=True, metavar="all|every:M|last",
              help="Checkpoints that stay on disk: all, every M-th, or the last.")  # fmt: skip
@machine_options("threads", "device", "memory")
@json_option
def finetune(output: Path, key: Path | None, keep: str, machine: Machine, as_json: bool, **given: Any) -> None:
    """Fine-tune the model in a folder by LoRA on conversations, as a run that anyone can check.

    At the end, OUTPUT/adapter has the adapter as PEFT loads it, its certificate, and a model card with the command that
    verifies it; OUTPUT/run has the run, which anyone can audit. Interrupt it at any time: the same command goes on from
    the last checkpoint. Nothing is fetched from anywhere. Where the chat template marks what the assistant says, only
    that is learnt. Needs the extra `finetune`. See docs/finetuning.md.
    """
    own, folder, adapter = output / "key.pem" if key is None else key, output / "run", output / "adapter"
    make_folder(output)
    signer, settings = load_key(own) if own.exists() else new_key(own), api.finetuning.FineTuning(**given)
    run, model = api.finetuning.finetune(settings, folder, key=signer, machine=machine, progress=not as_json, keep=keep)
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)  # PEFT's: ours names the certificate, which cannot sign for it
    certificate = adapter / "certificate.json"
    signed, found = api.certifying.certify(api.runs.open_directory(folder), adapter, certificate, signer)
    card = api.finetuning.model_card(settings, run) + api.certifying.card(signed, found, certificate.name)
    write_file(adapter / "README.md", card.encode())
    tell({
        "run": str(folder), "steps": run.steps, "loss": run.losses[-1], "adapter": str(adapter),
        "certificate": signed.certificate.payload.digest.hex(),
        "verify": shlex.join([*map(str, ("tiebreak", "verify", adapter, certificate, "--base", settings.model)),
                              "--require", f"0x{signer.address.hex()}"]),
    }, as_json=as_json)  # fmt: skip
