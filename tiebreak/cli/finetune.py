"""`tiebreak finetune`: from a model and conversations to a certified adapter."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import yaml

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.api.training.settings import FineTuning, quantization
from tiebreak.cli.key import load_key, new_key
from tiebreak.cli.options import FILE, FOLDER, NEW_FOLDER, json_option, keep_option, machine_options, number, tell
from tiebreak.engine.data.disk import make_folder, read_file, write_file
from tiebreak.engine.run.directory import Keep
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, own_file

MAX_CONFIG_BYTES: Final = 1 << 16
ROWS: Final = click.Path(exists=True, path_type=Path)
NAME: Final = "_name_or_path"
"""The field of a model's configuration that names it."""
MERGED: Final = (
    "These weights are not certified: the sums of base and adapters were rounded here, outside the run. The certificate"
    " is for the adapters alone.\n"
)


def _configure(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Makes the fields of a YAML file the defaults of the options of the same names."""
    if path is None:
        return
    try:
        with own_file():
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
@click.option("--data", type=ROWS, required=True, help="Rows of conversations or texts (see docs/finetuning.md): JSON "
              "lines, a JSON list, Parquet, or a folder of `datasets` or of such files.")  # fmt: skip
@click.option("--evaluation", "--eval", type=ROWS, help="Rows whose mean loss is computed at each checkpoint; they are "
              "not learnt.")  # fmt: skip
@click.option("--output", "-o", type=NEW_FOLDER, required=True,
              help="Folder for run, adapter and key; what is there already is continued.")  # fmt: skip
@click.option("--merge", type=NEW_FOLDER, help="New or empty folder for a model with merged adapters, uncertified.")
@number("--lora", 1, None, 16, "Rank of the adapters.")
@click.option("--alpha", type=click.IntRange(1), help="Scale of the adapters, times their rank.  [default: 2 ranks]")
@click.option("--targets", default="all-linear", show_default=True, metavar="NAME,...",
              help="Names of modules that get adapters; all-linear: linear layers but the head.")  # fmt: skip
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0, show_default=True,
              help="Share of an adapter's inputs that a step zeroes, drawn from the job's seed.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), default="auto", show_default=True,
              help="Type of the model's weights; auto: that in its folder. Adapters are float32.")  # fmt: skip
@click.option("--epochs", type=click.FloatRange(0, min_open=True), help="Passes over the data.  [default: 1]")
@click.option("--steps", type=click.IntRange(1), help="Steps of training, instead of --epochs.")
@number("--length", 2, None, 1024, "Tokens in a window; conversations are packed into windows one after the other.")
@number("--batch", 1, None, 1, "Windows in a batch.")
@number("--accumulation", 1, None, 1, "Batches whose gradients are summed in a step.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=2e-4, show_default=True, help="Learning rate.")
@click.option("--schedule", type=click.Choice(["constant", "linear", "cosine"]), default="cosine", show_default=True,
              help="Course of the rate after the warm-up; the last two fall to a tenth in the last step.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0), help="Steps in which the rate rises.  [default: 3% of all steps]")
@click.option("--beta", type=click.FloatRange(0, min_open=True), default=0.1, show_default=True,
              help="Closeness to the base, for rows with a better and a worse answer.")  # fmt: skip
@number("--checkpoints", 1, None, 10, "Checkpoints at least, if there are as many steps; each is signed, and up to 19 "
        "of them are evaluated.")  # fmt: skip
@number("--seed", 0, (1 << 64) - 1, 0, "Seed of the adapters' first weights, the order of windows, and dropout.")
@click.option("--key", type=FILE, help="Key file that signs the run.  [default: key.pem in OUTPUT, made if need be]")
@click.option("--about", type=FILE, help="TOML file with fields of the model card (base_model, license, datasets, "
              "language, tags): docs/certificates.md.")  # fmt: skip
@keep_option("last")
@machine_options("threads", "device")
@json_option
def finetune(
    output: Path, merge: Path | None, key: Path | None, about: Path | None, keep: str, machine: Machine, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Fine-tune a model by LoRA, as a run that anyone can check.

    The model is in a folder, and the data are conversations. At the end, OUTPUT/adapter has the adapter as PEFT loads
    it, its tokenizer, its certificate, and a model card with the command that verifies it; OUTPUT/run has the run,
    which anyone can audit. Interrupt it at any time: the same command goes on from the last checkpoint. Nothing is
    fetched from anywhere. Of a conversation, what the assistant says is learnt. Needs the extra `finetune`. See
    docs/finetuning.md.
    """
    settings, folder, adapter = FineTuning(**given), output / "run", output / "adapter"
    declared = api.about.About() if about is None else api.about.About.read(about)
    Keep.parse(keep)
    if merge is not None and merge.is_dir() and any(merge.iterdir()):
        raise ConfigurationError(f"expected a new or empty folder to merge into, got {merge}; choose another")
    if merge is not None and quantization(settings.model):
        raise ConfigurationError(
            f"expected --merge with a model that is not quantized, got {settings.model}; PEFT merges the adapter into "
            "the model from which that was made"
        )
    api.formats.keep_bundle(["hub"], adapter, adapter / "certificate.json")
    prepared = settings.check(folder)
    with key_of(output / "key.pem" if key is None else key, folder) as signer:
        run, model, learnt, held = api.finetuning.finetune(
            prepared, folder, key=signer, machine=machine, progress=not as_json, keep=keep,
            tell=lambda line: None if as_json else click.echo(line, err=True),
        )  # fmt: skip
    api.finetuning.save(settings, model, adapter)
    certificate = adapter / "certificate.json"
    signed, _ = api.issuance.certify(api.reading.open_directory(folder), adapter, certificate, signer)
    metrics = {} if held is None else api.evaluations.evaluate(
        model, held.examples, output / "evaluation", key=signer, batch=settings.batch, described=prepared.measured,
        machine=machine, progress=not as_json,
    )  # fmt: skip
    text = api.finetuning.description(prepared, run, learnt.lines)
    answers = {"base_model": base} if (base := api.cards.hub_id(Path(settings.model) / "config.json", NAME)) else {}
    known = api.about.About(answers={"pipeline_tag": "text-generation", **answers, **declared.answers})
    api.formats.write(["hub"], api.source.FormatSource(
        signed=signed, certificate=certificate.name, folder=adapter, text=text, about=known,
        scores=output / "evaluation" / "scores" if metrics else None,
    ))  # fmt: skip
    if merge is not None:
        api.finetuning.save(settings, model.merge_and_unload(), merge)
        write_file(merge / "README.md", MERGED.encode())
    tell({
        "run": str(folder), "steps": run.steps, "loss": run.losses[-1], "data": learnt.lines,
        **({"evaluation": metrics} if metrics else {}), "adapter": str(adapter),
        **({} if merge is None else {"merged": f"{merge} (not certified)"}),
        "certificate": signed.certificate.payload.digest.hex(),
        "verify": shlex.join([*map(str, ("tiebreak", "verify", adapter, certificate, "--base", settings.model)),
                              "--require", f"0x{signer.address.hex()}"]),
    }, as_json=as_json)  # fmt: skip


@contextmanager
def key_of(path: Path, run: Path) -> Iterator[PrivateKey]:
    """The key that signs. One made for a run that does not come about is removed, with the folder made for it."""
    is_new, made = not path.exists(), not run.parent.exists()
    make_folder(run.parent)
    try:
        yield new_key(path) if is_new else load_key(path)
    except BaseException:
        if is_new and not (run / "job.bin").exists():
            path.unlink(missing_ok=True)
        if made and not any(run.parent.iterdir()):
            run.parent.rmdir()
        raise
