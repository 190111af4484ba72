"""Evaluates models in a folder: a run, and beside it the scores with a certificate, an in-toto statement and a card.

run                      the run, which anyone can audit
scores/scores.safetensors  `evaluation_scores` and `evaluation_metrics`, as the run ended with them
scores/evaluation.json   names of metrics and columns, roots of program and data, and what its maker says of these
scores/certificate.json  for the scores, as that of an adapter whose base is the model
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file, save
from torch import nn

from tiebreak.api.certification.certificates import SignedCertificate
from tiebreak.api.certification.folders import ADAPTER, EVALUATION, SCORES
from tiebreak.api.certification.issuance import certify
from tiebreak.api.evaluation.examples import of_choices
from tiebreak.api.machine import Machine
from tiebreak.api.provenance import formats
from tiebreak.api.provenance.source import FormatSource, metrics_in
from tiebreak.api.signing.keys import new_key
from tiebreak.api.training import scoring
from tiebreak.api.training.bundle import Bundle
from tiebreak.api.training.reading import open_directory
from tiebreak.api.training.runs import agree
from tiebreak.api.training.scoring import ScoredExamples, evaluation_task, plan
from tiebreak.api.training.templates import loaded
from tiebreak.engine.data.disk import make_folder, write_file
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, VerificationError

CERTIFICATE: Final = "certificate.json"


def load(model: Path, base: Path | None = None) -> Any:
    """The model in a folder, or that of an adapter there on its base; as its configuration says, with a classifier.

    No code of a folder is run, and nothing is fetched. Raises `ConfigurationError`.
    """
    import transformers  # noqa: PLC0415  # seconds, which checks need not spend

    is_adapter = (model / ADAPTER).is_file()
    if is_adapter != (base is not None):
        raise ConfigurationError(f"expected a base with an adapter, and none with a model, got {base} for {model}")
    config = loaded(transformers.AutoConfig, base or model)
    is_classifier = any("ForSequenceClassification" in name for name in config.architectures or ())
    kind = transformers.AutoModelForSequenceClassification if is_classifier else transformers.AutoModelForCausalLM
    made = loaded(kind, base or model, use_safetensors=True, dtype="auto").cpu()  # a quantized one is on a GPU
    if is_adapter:
        from peft import PeftModel  # noqa: PLC0415

        made = PeftModel.from_pretrained(made, model)
    return made


def evaluate(
    model: nn.Module, examples: ScoredExamples, output: Path, *, key: PrivateKey, batch: int = 1,
    described: Mapping[str, Any] = {}, machine: Machine = Machine(), progress: bool = True,
) -> dict[str, float]:  # fmt: skip
    """Scores examples and certifies the scores, or goes on where it was interrupted. Returns the metrics by name.

    output: a new or empty folder, or that of this evaluation. key: of whoever evaluates, who signs. described: further
    fields of `evaluation.json`, by its maker's word. Raises `ConfigurationError` for a model or score without an exact
    form.
    """
    with evaluation_task(model, examples, batch) as task:
        run = agree(task, output / "run", client=new_key(), trainer=key, machine=machine)
        run.resume(key, progress=progress)
    make_folder(folder := output / "scores")
    roots = {name: getattr(run.job, name).hex() for name in ("program_root", "data_root")}
    write_file(folder / EVALUATION, plan(examples, roots, described))
    state = run.state_dict()
    write_file(folder / SCORES, save({name: state[name] for name in (scoring.SCORES, scoring.METRICS)}))
    signed, _ = certify(open_directory(output / "run"), folder, folder / CERTIFICATE, key, besides=["README.md"])
    formats.write(["hub", "in-toto"], FormatSource(signed=signed, certificate=CERTIFICATE, folder=folder, key=key))
    return metrics_in(folder)


def continuations(
    model: Path, base: Path | None, pairs: Sequence[tuple[list[int], list[int]]], output: Path, *, length: int,
    **given: Any,
) -> list[tuple[float, bool]]:  # fmt: skip
    """Scores pairs of tokens, a context and its continuation, for `lm_eval`; given: as for `evaluate`.

    Returns, of each pair in their order, the log-probability of the continuation, and whether greedy decoding gives it.
    """
    tokens = [[(a + b, [False] * len(a) + [True] * len(b))] for a, b in pairs]
    examples = of_choices(tokens, [0] * len(pairs), [[1]] * len(pairs))
    evaluate(load(model, base), examples, output, described={"length": length}, **given)
    scores = load_file(output / "scores" / SCORES)[scoring.SCORES]
    return [(row[-2], bool(row[-1])) for row in scores.tolist()]


def check_against(bundle: Bundle, signed: SignedCertificate, examples: ScoredExamples, folder: Path) -> None:
    """Raises `VerificationError` unless a certificate is for scores by this program, of this model and these data.

    folder: that of the scores, whose metrics must have the names of these.
    """
    job: Job = signed.certificate.job
    meanings = {"program_root": "another metric, number or length of examples, or size of batches",
                "data_root": "other examples", "initial_state_root": "another model"}  # fmt: skip
    for name, root in bundle.roots().items():
        if (got := getattr(job, name).hex()) != root:
            raise VerificationError(f"expected the {name} {root}, got {got}: {meanings[name]}")
    if not signed.is_evaluation or job.steps != bundle.steps:
        raise VerificationError(f"expected a certificate for the scores of {bundle.steps} steps, got another")
    if (names := tuple(metrics_in(folder))) not in ((), examples.metrics):
        raise VerificationError(f"{folder / EVALUATION}: expected metrics named {examples.metrics}, got {names}")
