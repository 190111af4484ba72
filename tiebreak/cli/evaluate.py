"""`tiebreak evaluate`: scores of a model that anyone can check."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.api.training.settings import measured_on, positions
from tiebreak.cli.finetune import ROWS, key_of
from tiebreak.cli.options import FILE, FOLDER, json_option, machine_options, number, output_option, tell
from tiebreak.protocol.errors import ConfigurationError

RESULTS: Final = "results.json"
"""The file with all that lm-eval says of its tasks."""


@click.command()
@click.argument("model", type=FOLDER)
@click.option("--on", "rows", type=ROWS, help="Rows to score: prompt, choices and answer; text and label, for a "
              "classifier; or conversations and texts, for the loss by token (docs/evaluations.md).")  # fmt: skip
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Instead of --on: a task of lm-eval that needs "
              "log-likelihoods alone; may be repeated. Tasks are code: take none from strangers.")  # fmt: skip
@click.option("--tasks", "folder", type=FOLDER, help="With --task: a folder with tasks of your own.")
@click.option("--base", type=FOLDER, help="The model that MODEL, the folder of an adapter, is for.")
@output_option("evaluation", "Folder for run and scores; what is there already is continued.")
@click.option("--against", type=FILE, help="Compute nothing: compare program, examples and model with those of a "
              "CERTIFICATE of scores. Exit code 2 if they are others.")  # fmt: skip
@number("--length", 2, None, 1024, "The most tokens of an example; longer ones lose their beginning.")
@number("--batch", 1, None, 8, "Examples in a step. The scores do not depend on it.")
@click.option("--key", type=FILE, help="Key file that signs.  [default: key.pem in OUTPUT, made if need be]")
@machine_options("threads", "device")
@json_option
def evaluate(
    model: Path, rows: Path | None, tasks: tuple[str, ...], folder: Path | None, base: Path | None, output: Path,
    against: Path | None, length: int, batch: int, key: Path | None, machine: Machine, as_json: bool,
) -> None:  # fmt: skip
    """Score MODEL on examples, as a run that anyone can check.

    MODEL is a folder as `save_pretrained` writes it, or that of an adapter. The run learns nothing: its steps take the
    examples in order and write each one's score into the state. At the end, OUTPUT/scores has the scores, their
    certificate, the same as an in-toto statement, and a model card with the metrics; OUTPUT/run has the run. Interrupt
    it at any time: the same command goes on. Needs the extra `finetune`, and `lm-eval` for --task.

    Whoever has the certificate checks that the scores are this model's (`tiebreak verify OUTPUT/scores ... --base
    MODEL`); whoever has the examples, that these were scored, and how (--against); and anyone replays a part of the run
    (`tiebreak audit`).
    """
    if bool(rows) == bool(tasks):
        raise ConfigurationError("expected --on or --task, got both or neither")
    given: dict[str, Any] = {"batch": batch, "machine": machine}
    length = min(length, positions(base or model) or length)
    if tasks:
        with key_of(output / "key.pem" if key is None else key, output / "run") as signer:
            score = partial(api.evaluations.continuations, model, base, key=signer, progress=not as_json, **given)
            document = api.lm_eval_model.run_tasks(base or model, tasks, folder, output, score=score, length=length)
        (output / RESULTS).write_text(json.dumps(document, indent=1) + "\n")
        found = {name: document[name] for name in ("results", "groups", "versions") if name in document}
        tell(found | {"certificates": [*map(str, sorted(output.glob("*/scores/*.json")))]}, as_json=as_json)
        return
    assert rows is not None
    tokenizer = _tokenizer(model, base)
    examples, loaded = api.examples.read(tokenizer, rows, length), api.evaluations.load(model, base)
    if against is not None:
        signed = api.certificates.read_certificate(against)
        bundle = api.scoring.captured(loaded, examples, batch)
        api.evaluations.check_against(bundle, signed, examples, against.parent)
        tell({"holds": True, "examples": examples.lines, "signatures": signed.signatures}, as_json=as_json)
        return
    with key_of(output / "key.pem" if key is None else key, output / "run") as signer:
        metrics = api.evaluations.evaluate(
            loaded, examples, output, key=signer, described=measured_on(rows, length, batch), progress=not as_json,
            **given,
        )  # fmt: skip
    certificate = output / "scores" / api.evaluations.CERTIFICATE
    verify = ["tiebreak", "verify", certificate.parent, certificate, "--base", model]
    own = model / certificate.name
    verify += ["--base-certificate", own] if own.is_file() else []
    verify += [] if base is None else ["--base", base]
    tell({
        "examples": examples.lines, "metrics": metrics, "certificate": str(certificate),
        "verify": shlex.join([*map(str, verify), "--require", f"0x{signer.address.hex()}"]),
    }, as_json=as_json)  # fmt: skip


def _tokenizer(model: Path, base: Path | None) -> Path:
    return model if (model / "tokenizer_config.json").is_file() or base is None else base


@click.command()
@click.argument("model", type=FOLDER)
@click.argument("prompts", type=ROWS)
@click.option("--base", type=FOLDER, help="The model that MODEL, the folder of an adapter, is for.")
@output_option("answers", "New or empty folder for answers, run and scores.")
@number("--answers", 1, 1024, 1, "Answers to each prompt, which differ by their noise alone.")
@number("--length", 1, None, 128, "The most tokens of an answer.")
@click.option("--temperature", type=click.FloatRange(0), default=1.0, show_default=True,
              help="Divides the logits before noise is added; at 0 there is no noise.")  # fmt: skip
@number("--top-k", 0, None, 0, "Draw among this many tokens, those with the greatest logits; 0 for all.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="Draw among "
              "the most probable tokens that have this probability together.")  # fmt: skip
@number("--seed", 0, (1 << 63) - 1, 0, "Seed of the noise.")
@click.option("--key", type=FILE, help="Key file that signs.  [default: key.pem in OUTPUT, made if need be]")
@machine_options("threads", "device")
@json_option
def generate(
    model: Path, prompts: Path, base: Path | None, output: Path, answers: int, length: int, temperature: float,
    top_k: int, top_p: float, seed: int, key: Path | None, machine: Machine, as_json: bool,
) -> None:  # fmt: skip
    """Sample answers of MODEL to PROMPTS, which anyone can check.

    PROMPTS are rows with a `prompt`. Each token of an answer follows from the tokens before it, the weights and the
    seed, so there is one answer for a seed, and no choice among many. OUTPUT/answers.jsonl has the answers.
    They are then checked by the program, token by token, as an evaluation of that file: OUTPUT/scores has a certificate
    whose metric `sampled` is 1 if all are as they have to be. Needs the extra `finetune`.
    """
    if output.exists() and any(output.iterdir()):
        raise ConfigurationError(f"expected a new or empty folder, got {output}; choose another")
    tokenizer = _tokenizer(model, base)
    asked = api.generation.prompts_in(tokenizer, prompts)
    longest, most = max(len(tokens) for _, tokens in asked) + length, positions(base or model)
    if most and longest > most:
        raise ConfigurationError(f"expected at most {most:,} tokens with a prompt, got {longest:,}; lower --length")
    loaded = api.evaluations.load(model, base)
    sampler = api.generation.ExactSampler(
        model=loaded, prompts=[tokens for _, tokens in asked], answers=answers, length=length, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, end=api.generation.ends_of(loaded), machine=machine,
    )  # fmt: skip
    with api.progress.on_stderr("sampling", len(asked), 0, quiet=as_json) as on_step:
        found = sampler.run(on_step)
    with key_of(output / "key.pem" if key is None else key, output / "run") as signer:
        path = output / "answers.jsonl"
        api.generation.write(path, tokenizer, [text for text, _ in asked], sampler, found)
        examples = api.examples.read(tokenizer, path, sampler.width)
        metrics = api.evaluations.evaluate(
            loaded, examples, output, key=signer, described=measured_on(path, sampler.width, 1), machine=machine,
            progress=not as_json,
        )  # fmt: skip
    certificate = output / "scores" / api.evaluations.CERTIFICATE
    verify = ["tiebreak", "evaluate", model, "--on", path, "--length", sampler.width, "--against", certificate]
    verify += [] if base is None else ["--base", base]
    tell({
        "answers": str(path), "tokens": found.drafted, "corrected": found.corrected, "metrics": metrics,
        "certificate": str(certificate), "signed by": f"0x{signer.address.hex()}",
        "check": shlex.join(map(str, verify)),
    }, as_json=as_json)  # fmt: skip
