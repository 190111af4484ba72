"""The library interface: the same bytes every time, resumed or not, and every complaint before any work."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import tiebreak
from tests.engine.logged_cases import log_of
from tests.source_tree import ROOT
from tiebreak.api.training import runs
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError

STEPS = 7


class Tied(nn.Module):
    """Tokens [B, T] to logits [B, T, 11], with tied weights, dropout and a buffer that `state_dict` leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.2)
        self.out = nn.Linear(6, 11, bias=False)
        self.out.weight = self.tokens.weight
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.middle(self.tokens(x)))
        y = self.norm(y.flatten(0, 1)).reshape(y.shape)
        logits: Tensor = self.out(self.dropout(y) * self.scale)
        return logits


def sequence_loss(model: nn.Module, window: Tensor) -> Tensor:
    return F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


def with_numbers(model: nn.Module) -> nn.Module:
    """Weights that no version of torch draws otherwise."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
            parameter.copy_(torch.sin(values * (0.7 + i)) * 0.3)
    return model


def tied(**changes: Any) -> tiebreak.Task:
    given = {
        "model": with_numbers(Tied()),
        "loss": sequence_loss,
        "optimizer": tiebreak.AdamW(lr=1e-2),
        "data": {"text": (torch.arange(60) * 7) % 11},
        "batch": tiebreak.Batch(size=4, examples=tiebreak.Windows(name="text", length=5, stride=3)),
        "steps": STEPS,
    }
    return tiebreak.Task(**(given | changes))


def regression(**changes: Any) -> tiebreak.Task:
    x = torch.sin(torch.arange(96, dtype=torch.float32)).reshape(24, 4)
    given = {
        "model": with_numbers(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))),
        "loss": nn.MSELoss(),
        "optimizer": tiebreak.SGD(lr=0.05, momentum=0.9),
        "data": {"x": x, "y": x.sum(1, keepdim=True)},
        "batch": 6,
        "steps": STEPS,
    }
    return tiebreak.Task(**(given | changes))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return sorted(a) == sorted(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_training_leaves_the_given_module_untouched_until_state_is_loaded(cases: Callable[[], None]) -> None:
    for make in (tied, regression):
        given = make()
        before = copy.deepcopy(given.model.state_dict())
        trainer = tiebreak.reproducible(given)
        steps = list(trainer)
        assert [step.number for step in steps] == list(range(1, STEPS + 1))
        assert [step.loss for step in steps] == trainer.losses
        assert trainer.losses[-1] < trainer.losses[0]
        assert repr(trainer).startswith(f"<tiebreak trainer: step {STEPS} of {STEPS}, loss {trainer.losses[-1]:.4g}")
        assert same(given.model.state_dict(), before)
        after = trainer.state_dict()
        assert not same(after, before)
        given.model.load_state_dict(after)  # strict: all keys, no others
        assert same(given.model.state_dict(), after)
        with pytest.warns(UserWarning, match=f"all {STEPS} steps are computed"):
            assert next(iter(trainer), None) is None
        cases()


@pytest.mark.slow
def test_equivalent_task_descriptions_train_the_same_bits(cases: Callable[[], None]) -> None:
    expected = tiebreak.reproducible(regression()).run(progress=False).digest()
    given = regression()
    arrays = {name: tensor.numpy() for name, tensor in given.data.items()}
    by_name, rows = (lambda model, x, y: F.mse_loss(model(x), y)), tiebreak.Rows(names=("x", "y"))
    for change in (
        {"loss": F.mse_loss, "data": arrays, "schedule": [1.0] * STEPS},
        {"loss": by_name, "schedule": lambda step: 1, "batch": tiebreak.Batch(size=6, examples=rows)},
    ):
        trainer = tiebreak.reproducible(regression(**change))
        assert trainer.run(progress=False).digest() == expected
        cases()
    turned = {name: given.data[name] for name in ("y", "x")}  # the arrays find their arguments by name
    losses = tiebreak.reproducible(regression(data=turned, loss=by_name)).run(progress=False).losses
    assert losses == trainer.losses
    dataset = TensorDataset(given.data["x"], given.data["y"])
    named = [{"x": x, "y": y} for x, y in dataset]
    pairs = [(x.double().numpy(), y.double().numpy()) for x, y in dataset]
    for data in (dataset, [*dataset], pairs, named, Subset(dataset, range(len(dataset))), DataLoader(dataset, 6, True)):
        assert tiebreak.reproducible(regression(data=data)).run(progress=False).losses == losses
        cases()
    other = tiebreak.reproducible(regression(seed=1)).run(progress=False)
    assert other.digest() != expected


def test_thread_count_and_interruptions_change_no_bit() -> None:
    whole = tiebreak.reproducible(tied(), machine=tiebreak.Machine(threads=1)).run(progress=False)
    pieces = tiebreak.reproducible(tied(checkpoint_interval=2), machine=tiebreak.Machine(threads=2))
    torch.set_num_threads(1)
    for step in pieces:  # an iteration may be left, and the interval of checkpoints decides no bit in memory
        if step.number == 3:
            break
    assert (pieces.step, pieces.losses) == (3, whole.losses[:3])
    assert pieces.run(5, progress=False).step == 5
    assert pieces.run(progress=False).digest() == whole.digest()
    assert pieces.losses == whole.losses
    with pytest.raises(ConfigurationError, match="until of at most 7 steps"):
        whole.run(8)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another model's optimizer": (
        {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)},
        "an optimizer of the model's own parameters .* shapes .*that the model does not have",
    ),
    "no optimizer": ({"optimizer": "SGD"}, r"such as tiebreak.AdamW\(lr=1e-3\), or optimizers of .* got 'str'"),
    "no data": ({"data": {}}, "expected data as arrays by name, a .safetensors file of them"),
    "unequal examples": ({"data": [(torch.ones(1), 1), (torch.ones(2), 1)]}, "examples of numbers in equal shapes"),
    "texts": ({"data": [("a", 1), ("b", 2)]}, "examples of numbers in equal shapes"),
    "nested examples": ({"data": [([1.0, 2.0], 1)]}, "examples of numbers in equal shapes"),
    "a list": ({"data": [1]}, r"got \[1\]"),
    "large batch": ({"batch": 25}, "a batch of at most all 24 examples, got 25"),
    "order": ({"data": {"y": torch.ones(9, 1), "x": torch.ones(9, 4)}}, "the target of torch's own losses last"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_work(name: str) -> None:
    change, words = BAD[name]
    with pytest.raises(ConfigurationError, match=words):
        regression(**change)


def test_training_refuses_a_directory_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigurationError, match="expected a new or empty directory"):
        tiebreak.train(regression(), tmp_path)


def test_a_run_resumes_is_audited_and_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, folder = tied(checkpoint_interval=3), tmp_path / "run"
    begun = tiebreak.agree(given, folder)
    assert (begun.step, begun.finished, begun.losses) == (0, False, [])
    with pytest.raises(StateError, match="nothing to audit yet"):
        begun.audit()
    begun.resume(until=4, progress=False)
    assert (begun.step, begun.finished) == (3, False)
    run = tiebreak.train(given, folder)
    assert "training: step 7 of 7" in capsys.readouterr().err
    assert (run.step, run.finished, run.signed, len(run.losses)) == (STEPS, True, 0, STEPS)
    whole = tiebreak.train(given, tmp_path / "whole", progress=False, keep="last")
    assert capsys.readouterr().err == ""
    with pytest.raises(StateError, match="after step 3 was not kept"):
        whole.state_dict(3)
    assert whole.audit().agrees
    assert (whole.root, whole.losses) == (run.root, run.losses)
    trainer = tiebreak.reproducible(given).run(progress=False)
    assert same(trainer.state_dict(), run.state_dict())
    assert trainer.losses == run.losses
    opened = tiebreak.open_run(folder)
    assert opened.root == run.root
    assert same(opened.state_dict(), run.state_dict())
    given.model.load_state_dict(opened.state_dict(3))
    assert opened.audit().agrees
    assert [report.checkpoint for report in opened.audit(from_step=4, to_step=4).checked] == [1]
    assert len(opened.audit(sample=2, seed="s").checked) >= 2
    with pytest.raises(StateError, match="expected the step of a checkpoint so far, got 4"):
        opened.state_dict(4)
    with pytest.raises(ConfigurationError, match="expected a sample with a seed"):
        opened.audit(sample=2)


def test_a_directory_of_another_job_is_refused_naming_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiebreak.agree(regression(), tmp_path)
    loss = {"loss": nn.L1Loss()}
    with pytest.raises(ConfigurationError, match=r"expected a run with program_root .*: another model, loss, or shape"):
        tiebreak.train(regression(**loss), tmp_path)
    monkeypatch.setattr(runs, "capture_bundle", None)  # what is named is named before anything is captured
    rate = {"optimizer": tiebreak.SGD(lr=0.3)}
    for change, said in (({"seed": 3}, "seed 0, got 3"), ({"steps": 13}, "steps .*, got 13"), (rate, "lr .*, got 0.3")):
        with pytest.raises(ConfigurationError, match=f"{tmp_path} was made with .*{said}; .* or start afresh"):
            tiebreak.train(regression(**change), tmp_path)


def test_the_trainers_key_alone_signs_a_run(tmp_path: Path) -> None:
    trainer = tiebreak.new_key()
    for _ in range(2):  # another throwaway key in the client's place does not make it another run
        run = tiebreak.train(regression(checkpoint_interval=2), tmp_path / "run", trainer=trainer, progress=False)
    assert run.signed == 4
    assert run.audit().agrees


def test_audit_of_a_signed_run_starts_earlier_if_a_state_is_damaged(tmp_path: Path) -> None:
    client, trainer, stranger = (tiebreak.new_key() for _ in range(3))
    with pytest.raises(ConfigurationError, match="the trainer's key too, got the client's alone"):
        tiebreak.agree(regression(), tmp_path / "x", client=client)
    folder, terms = tmp_path / "run", tiebreak.Terms(reward=5, descent_levels=2)
    run = tiebreak.train(
        regression(checkpoint_interval=2), folder, client=client, trainer=trainer, terms=terms, progress=False
    )
    assert (run.job.reward, run.job.client, run.signed) == (5, client.address, 4)
    with pytest.raises(ConfigurationError, match="expected the key of trainer"):
        run.resume(stranger)
    assert run.audit().agrees
    opened = RunDirectory.open(folder)
    state = opened.state_path(4)
    state.write_bytes(state.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(VerificationError, match="state after step 4"):
        run.state_dict(4)
    audit = run.audit(from_step=5, to_step=6)
    assert (audit.agrees, audit.refused, audit.starts) == (True, [4], [2])


@pytest.mark.slow
def test_a_logged_run_with_a_calibrated_policy_passes_its_audit(tmp_path: Path) -> None:
    given = regression(steps=24)
    policy = tiebreak.calibrate(given, precision=16, steps=1, orders=1, threads=1)
    assert policy.measurements is not None
    client, trainer = (tiebreak.new_key() for _ in range(2))
    folder = tmp_path / "run"
    run = tiebreak.train(given, folder, client=client, trainer=trainer, policy=policy, progress=False)
    assert run.job.is_logged
    assert (run.job.precision, run.job.tolerances) == (16, policy.tolerances_packed)
    policy.save(tmp_path / "own.json")
    for own in (policy, str(tmp_path / "own.json")):
        audit = tiebreak.open_run(folder, machine=tiebreak.Machine(policy=own)).audit()
        assert (audit.agrees, audit.log.steps, audit.log.missing) == (True, run.steps, 0)
    assert audit.log.entries == sum(log_of(RunDirectory.open(folder), s).count for s in range(1, run.steps + 1))
    with pytest.raises(ConfigurationError, match="of the job's precision, 16, got one of 32"):
        tiebreak.open_run(folder, machine=tiebreak.Machine(policy=tiebreak.calibrate())).audit()
    with pytest.raises(ConfigurationError, match="expected a run with policy"):
        tiebreak.agree(given, folder)
    with pytest.raises(ConfigurationError, match="expected precision 16 of the policy file, got 24"):
        tiebreak.agree(regression(), tmp_path / "x", policy=policy, precision=24)
    with pytest.raises(ConfigurationError, match=r"tiebreak.Task objects, got 'digits'"):
        tiebreak.calibrate("digits")  # type: ignore[arg-type]


def test_exact_runs_of_different_precisions_have_different_roots(tmp_path: Path) -> None:
    runs = [tiebreak.train(regression(), tmp_path / str(b), precision=b, progress=False) for b in (32, 24)]
    assert [(run.job.policy, run.job.precision) for run in runs] == [(0, 32), (0, 24)]
    assert runs[0].root != runs[1].root
    assert all(run.audit().agrees for run in runs)
    with pytest.raises(ConfigurationError, match="no policy file for a job of policy exact"):
        tiebreak.open_run(runs[0].directory, machine=tiebreak.Machine(policy=tiebreak.calibrate())).audit()


def test_a_run_that_diverges_stops(tmp_path: Path) -> None:
    given = regression(optimizer=tiebreak.SGD(lr=1e30))
    with pytest.raises(StateError, match="no longer finite"):
        tiebreak.reproducible(given).run(progress=False)
    with pytest.raises(StateError, match="no longer finite"):
        tiebreak.train(given, tmp_path / "run", progress=False)


def test_malformed_state_dict_names_in_a_run_are_refused(tmp_path: Path) -> None:
    run = tiebreak.agree(regression(), tmp_path)
    for bad in ("", "[" * 100_000, "0.weight", "0.weight\tnowhere\n", "0.weight\tmodel.0.weight\n\n"):
        (tmp_path / "state_dict.tsv").write_text(bad)
        with pytest.raises(EncodingError):
            run.state_dict()
    (tmp_path / "state_dict.tsv").unlink()
    assert same(run.state_dict(), regression().model.state_dict())


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert [name for name in tiebreak.__all__ if getattr(tiebreak, name).__doc__ is None] == []
    assert set(tiebreak.__all__) <= set(dir(tiebreak))
    with pytest.raises(AttributeError, match="No tiebreak attribute nothing"):
        _ = tiebreak.nothing
    assert (ROOT / "tiebreak" / "py.typed").is_file()
