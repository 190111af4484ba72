"""A run without some of its rows is, bit for bit, a fresh run of the job without them; and what its receipt shows."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import tiebreak
from tests.engine.tiny import CLIENT, TRAINER
from tests.tiebreak.parties import Commands, Parties, flip
from tiebreak import Batch, Rows, Task, Windows
from tiebreak.api.certification.job_data import JobData
from tiebreak.api.certification.removal import RECEIPT, Removal, check_removal
from tiebreak.api.machine import Machine
from tiebreak.api.training.bundle import Bundle
from tiebreak.api.training.runs import Run, agree_on
from tiebreak.api.training.settings import TUNING
from tiebreak.engine.logged.policy import policy_of
from tiebreak.engine.run.commit import make_record
from tiebreak.engine.run.directory import DATA, RECORDS, RunDirectory
from tiebreak.protocol.commitments import statement as intoto
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import ConfigurationError, EncodingError, SignatureError, VerificationError
from tiebreak.protocol.numbers.philox import shuffle
from tiebreak.protocol.program.example_order import LIST, example_order

ROWS, STEPS, INTERVAL, ONE = 31, 24, 2, Machine(threads=1)


class Net(nn.Module):
    """A classifier of 6 features, with what a task adds."""

    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x.to(next(self.parameters()).dtype))
        return found


def classify(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).float(), y)


def whole_sum(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="sum")


def of(*more: nn.Module, batch: int | Batch = 4, x: Tensor | None = None, loss: Any = classify, **given: Any) -> Task:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(ROWS, 6, generator=generator) if x is None else x
    data = {"x": features, "y": torch.randint(0, 3, (ROWS,), generator=generator), **given.pop("data", {})}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = given.pop("model", Net)(*more)
    given.setdefault("optimizer", tiebreak.SGD(lr=0.1))
    return Task(
        model, loss, data=data, batch=batch, steps=STEPS, checkpoint_interval=INTERVAL, seed=9, name="removed", **given
    )


def in_order(size: int = 4, **more: bool) -> Batch:
    return Batch(size=size, examples=Rows(names=("x", "y")), **more)


BYTES = (torch.arange(ROWS * 6) % 251).to(torch.uint8).view(ROWS, 6)
WORDS = (torch.arange(ROWS * 48) % 251).to(torch.uint8).view(ROWS, 48)
TASKS: dict[str, Callable[[], Task]] = {
    "sgd": of,
    "momentum": lambda: of(optimizer=tiebreak.SGD(lr=0.1, momentum=0.9)),
    "adamw": lambda: of(optimizer=tiebreak.AdamW(lr=0.01)),
    "dropout": lambda: of(nn.Dropout(0.3)),
    "batch norm": lambda: of(nn.BatchNorm1d(8), batch=5),
    "layer norm and dropout": lambda: of(nn.LayerNorm(8), nn.Dropout(0.1), optimizer=tiebreak.AdamW(lr=0.01)),
    "two batches": lambda: of(batch=2, accumulation=2),
    "three batches with dropout": lambda: of(nn.Dropout(0.2), batch=1, accumulation=3),
    "items": lambda: of(batch=2, accumulation=2, loss=whole_sum, items="n", data={"n": torch.ones(ROWS).long()}),
    "one row a step": lambda: of(batch=1),
    "several epochs": lambda: of(batch=16),
    "more than an epoch a step": lambda: of(batch=10, accumulation=4),
    "without the last": lambda: of(batch=in_order(drop_last=True)),
    "in order": lambda: of(batch=in_order(shuffled=False)),
    "in order without the last": lambda: of(batch=in_order(7, shuffled=False, drop_last=True), accumulation=2),
    "bfloat16": lambda: of(model=lambda *more: Net(*more).bfloat16()),
    "bytes": lambda: of(x=BYTES),
    "bytes in words": lambda: of(x=WORDS, loss=lambda model, x, y: classify(model, x[:, :6] / 251, y)),
    "clipped": lambda: of(clip=0.2, norm=True),
    "averaged": lambda: of(average=0.9),
    "scheduled": lambda: of(schedule=tiebreak.cosine(STEPS, warmup=3), optimizer=tiebreak.Lion(lr=0.01)),
}


def of_torch_adam() -> Task:
    model = Net()
    return of(model=lambda: model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))


TASKS["torch's own adam"] = of_torch_adam


def trained(task: Task, folder: Path, until: int | None = None, **given: Any) -> RunDirectory:
    keep = given.pop("keep", "all")
    run = tiebreak.agree(task, folder, client=CLIENT, trainer=TRAINER, check="none", machine=ONE, **given)
    run.resume(TRAINER, progress=False, until=until, keep=keep)
    return RunDirectory.open(folder)


def late_rows(run: RunDirectory, count: int = 3) -> list[int]:
    """The rows that are read last for the first time."""
    data = JobData(run)
    first = {row: min((read["step"] for read in data.exposure(row)), default=STEPS + 1) for row in range(ROWS)}
    return sorted(first, key=first.__getitem__)[-count:]


def resumed(removal: Removal, folder: Path, key: PrivateKey = TRAINER, **given: Any) -> RunDirectory:
    return removal.resume(folder, key, ONE, **{"keep": "all", "progress": False, **given})


def fresh(bundle: Bundle, folder: Path, old: RunDirectory, key: PrivateKey = TRAINER) -> RunDirectory:
    """The same job from its first step on."""
    made = agree_on(
        bundle, folder, client=CLIENT, trainer=key, terms=Terms(), domain=OFF_CHAIN, policy=policy_of(old),
        precision=old.job.precision,
    )  # fmt: skip
    Run(made, ONE).resume(key, progress=False)
    return made


def expected_order(run: RunDirectory, removed: list[int]) -> list[list[int]]:
    """The order without rows, from the formula of `Batch` in plain integers, by the old numbers."""
    order, found, draw = example_order(run.program)[0], list[int](), 0
    seed = int(run.data()["seed"]) if order.shuffle else 0
    while len(found) < STEPS * order.each:
        epoch, at = divmod(draw, order.epoch)
        row = shuffle(at, seed, epoch, order.shuffle.n, order.shuffle.stream) if order.shuffle else at
        found += [row] * (row not in removed)
        draw += 1
    return [found[step * order.each : (step + 1) * order.each] for step in range(STEPS)]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A finished run of the task with momentum and dropout; read only."""
    task = of(nn.Dropout(0.3), optimizer=tiebreak.SGD(lr=0.1, momentum=0.9))
    return trained(task, tmp_path_factory.mktemp("unlearning") / "old")


@pytest.fixture(scope="module")
def removal(old: RunDirectory) -> Removal:
    return Removal.of(old, late_rows(old))


@pytest.fixture(scope="module")
def new(removal: Removal, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run without the rows; read only."""
    return resumed(removal, tmp_path_factory.mktemp("unlearning") / "new")


def check_equal(old: RunDirectory, folder: Path, removed: list[int]) -> RunDirectory:
    """Removes rows, and compares with a fresh run and with the formula of the order. Returns the new run."""
    removal = Removal.of(old, removed)
    new, again = resumed(removal, folder / "new"), fresh(removal.bundle, folder / "fresh", old)
    assert new.root() == again.root()
    assert new.record_of(STEPS).state_root == again.record_of(STEPS).state_root
    assert new.root() != old.root() or removal.shared == STEPS
    assert new.last_head() is not None
    assert new.last_head().head.run_root == new.root()  # type: ignore[union-attr]
    assert Run(new).losses == Run(again).losses
    left = [row for row in range(ROWS) if row not in removed]
    before, after = old.data(), new.data()
    for name in example_order(old.program)[1]:
        assert torch.equal(after[name], before[name][left])
    assert [[left[row] for row in step] for step in after[LIST].tolist()] == expected_order(old, removed)
    assert check_removal(folder / "new" / RECEIPT, old, new).rows == tuple(sorted(removed))
    return new


def test_a_run_without_rows_is_a_fresh_run_of_the_job_without_them(
    old: RunDirectory, removal: Removal, tmp_path: Path
) -> None:
    """And its first checkpoints are those of the run before."""
    new = check_equal(old, tmp_path, [*removal.rows])
    first = min(read["step"] for row in removal.rows for read in JobData(old).exposure(row))
    assert 0 < removal.shared < first <= removal.shared + INTERVAL
    assert [one.encode() for one in new.records() if one.step <= removal.shared] == [
        one.encode() for one in old.records() if one.step <= removal.shared
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_programs_are_unlearnt_exactly(name: str, tmp_path: Path) -> None:
    old = trained(TASKS[name](), tmp_path / "old")
    check_equal(old, tmp_path, late_rows(old))


@pytest.mark.slow
def test_losses_are_those_of_plain_pytorch_in_the_order_that_is_left(tmp_path: Path) -> None:
    task = TASKS["momentum"]()
    old = trained(task, tmp_path / "old")
    removed = late_rows(old, 5)
    new = resumed(Removal.of(old, removed), tmp_path / "new")
    optimizer, losses = torch.optim.SGD(task.model.parameters(), lr=0.1, momentum=0.9), list[float]()
    for rows in expected_order(old, removed):
        loss = classify(task.model, torch.as_tensor(task.data["x"])[rows], torch.as_tensor(task.data["y"])[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(torch.tensor(Run(new).losses), torch.tensor(losses), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_logged_run_is_computed_from_its_first_step(tmp_path: Path) -> None:
    """Its roundings near ties are those of the machine that computed them, so its records are not taken over."""
    task = TASKS["momentum"]()
    policy = tiebreak.calibrate(task, precision=16, steps=1, orders=1, threads=1)
    old = trained(task, tmp_path / "old", policy=policy)
    assert old.job.is_logged
    new = check_equal(old, tmp_path, late_rows(old))
    assert (new.job.tolerances, Removal.of(old, late_rows(old)).shared) == (old.job.tolerances, 0)
    (tmp_path / "old" / "policy.json").unlink()
    with pytest.raises(VerificationError, match="expected policy 1 without the rows, got 0"):
        resumed(Removal.of(old, [1]), tmp_path / "other")


def test_rows_that_were_never_read_leave_all_checkpoints(tmp_path: Path) -> None:
    task = of(batch=in_order(shuffled=False, drop_last=True))
    old = trained(task, tmp_path / "old")
    removal = Removal.of(old, [29, 30])
    new = resumed(removal, tmp_path / "new")
    assert (removal.shared, new.records()) == (STEPS, old.records())
    assert "computes 0 of 24 steps" in removal.plan
    assert new.last_head().head.count == STEPS // INTERVAL  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="expected rows that are read to be left, got none"):
        Removal.of(old, range(28))


def test_an_unfinished_run_without_its_states_is_computed_from_the_last_one_kept(
    old: RunDirectory, removal: Removal, new: RunDirectory, tmp_path: Path
) -> None:
    copy = shutil.copytree(old.path, tmp_path / "old")
    for step in range(4, STEPS + 1, INTERVAL):
        RunDirectory.open(copy).drop_state(step)
    count = removal.shared // INTERVAL + 1
    (copy / RECORDS).write_bytes((copy / RECORDS).read_bytes()[: 76 * count])
    found = Removal.of(RunDirectory.open(copy), removal.rows)
    assert found.shared == removal.shared > 2
    assert f"up to the checkpoint of step {found.shared}; computes 22 of 24 steps, from step 2," in found.plan
    assert resumed(found, tmp_path / "new", keep="last").root() == new.root()


def test_an_interrupted_removal_is_resumed(
    removal: Removal, new: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run.resume

    def interrupted(self: Run, key: PrivateKey, **given: Any) -> None:
        whole(self, key, until=removal.shared + INTERVAL, **given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "resume", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resumed(removal, tmp_path / "new")
    assert not (tmp_path / "new" / RECEIPT).exists()
    found = RunDirectory.open(tmp_path / "new")
    with pytest.raises(VerificationError, match="expected records of the run before, and all others"):
        removal.document(found)
    assert resumed(removal, tmp_path / "new").root() == new.root()
    other = Removal.of(removal.before, [*removal.rows, min({*range(ROWS)} - {*removal.rows})])
    with pytest.raises(VerificationError, match=r"expected program_root .* without the rows, got"):
        resumed(other, tmp_path / "new")


def test_rows_are_removed_from_a_run_that_lacks_others_already(new: RunDirectory, tmp_path: Path) -> None:
    order = new.data()[LIST].flatten().tolist()
    second = Removal.of(new, [7, 2])
    found = resumed(second, tmp_path / "second")
    left = [row for row in range(ROWS - 3) if row not in (2, 7)]
    wanted = [row for row in order * 2 if row not in (2, 7)][: len(order)]
    assert [left[row] for row in found.data()[LIST].flatten().tolist()] == wanted
    assert found.root() == fresh(second.bundle, tmp_path / "fresh", new).root()
    assert len(found.program.body) == len(new.program.body)
    assert check_removal(tmp_path / "second" / RECEIPT, new, found).rows == (2, 7)
    reads = {(r["step"], r["place"]): row for row in range(len(left)) for r in JobData(found).exposure(row)}
    assert [reads[place] for place in sorted(reads)] == found.data()[LIST].flatten().tolist()


def test_what_cannot_be_removed_is_refused_in_words(old: RunDirectory, tmp_path: Path) -> None:
    for rows in ([], [ROWS], [-1], [1 << 64], range(ROWS)):
        with pytest.raises(ConfigurationError, match=f"expected some of {ROWS} rows, by numbers from 0 or values"):
            Removal.of(old, rows)
    twins = torch.arange(ROWS * 6.0).view(ROWS, 6)
    twins[4] = twins[20]
    task = replace_labels(of(x=twins))
    made = tiebreak.agree(task, tmp_path / "twins", check="none")
    with pytest.raises(ConfigurationError, match="expected all copies of a row, got not row 20, of the same values"):
        Removal.of(RunDirectory.open(made.directory), [4, 5])
    windows = Task(
        Net(), lambda model, x: model(x.float()).sum(), data={"x": torch.arange(60)}, optimizer=tiebreak.SGD(lr=0.1),
        batch=Batch(size=2, examples=Windows(name="x", length=6, stride=6)), steps=3,
    )  # fmt: skip
    made = tiebreak.agree(windows, tmp_path / "windows", check="none")
    with pytest.raises(ConfigurationError, match="rows of arrays, got windows of one long array"):
        Removal.of(RunDirectory.open(made.directory), [1])


def test_hostile_orders_are_refused(removal: Removal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with numbers of no rows, and more draws than anybody looks at."""
    terms: dict[str, Any] = {"client": CLIENT, "trainer": TRAINER, "terms": Terms(), "domain": OFF_CHAIN}
    for number in (ROWS, -1):
        order = removal.bundle.data[LIST].clone()
        order[-1, -1] = number
        bundle = replace(removal.bundle, data={**removal.bundle.data, LIST: order})
        with pytest.raises(EncodingError, match=f"expected an order of {ROWS - 3} rows, got others in it"):
            Removal.of(agree_on(bundle, tmp_path / f"{number}", **terms), [1])
    monkeypatch.setattr("tiebreak.api.certification.removal.MAX_DRAWS", 4 * STEPS - 1)
    with pytest.raises(ConfigurationError, match="expected at most 95 draws of rows, got 96"):
        Removal.of(removal.before, [1])


def replace_labels(task: Task) -> Task:
    return of(x=torch.as_tensor(task.data["x"]), data={"y": torch.zeros(ROWS, dtype=torch.int64)})


def signed(folder: Path, document: dict[str, Any], key: PrivateKey = TRAINER) -> Path:
    envelope = intoto.sign(Envelope(payload=intoto.payload_of(document)), key)
    (folder / "forged.json").write_bytes(envelope.encode())
    return folder / "forged.json"


def test_a_receipt_is_signed_by_the_new_trainer_and_of_both_runs(
    old: RunDirectory, removal: Removal, new: RunDirectory, tmp_path: Path
) -> None:
    document = removal.document(new)
    assert check_removal(signed(tmp_path, document), old, new).shared == removal.shared
    with pytest.raises(SignatureError, match="receipt: expected a signature by"):
        check_removal(signed(tmp_path, document, CLIENT), old, new)
    predicate = document["predicate"]
    lies: list[dict[str, Any]] = [
        {"removed": 4}, {"shared": removal.shared + INTERVAL}, {"before": predicate["after"]}, {"rows": []},
        {"after": {**predicate["after"], "root": "00" * 32}},
    ]  # fmt: skip
    for part in lies:
        with pytest.raises(EncodingError, match="expected what both runs say"):
            check_removal(signed(tmp_path, {**document, "predicate": {**predicate, **part}}), old, new)
    other = Removal.of(old, removal.rows[:2])
    made = fresh(other.bundle, tmp_path / "other", old)
    with pytest.raises(EncodingError, match="expected what both runs say"):
        check_removal(new.path / RECEIPT, old, made)
    with pytest.raises(VerificationError, match=f"expected data without some of {ROWS} rows, got others"):
        check_removal(signed(tmp_path, document), old, old)


def test_a_new_run_of_another_job_is_found_out(
    old: RunDirectory, removal: Removal, tmp_path: Path, cases: Callable[[], None]
) -> None:
    """A trainer signs the job it likes, computes it honestly, and writes the receipt of an honest one."""
    x, order = removal.bundle.data["x"].clone(), removal.bundle.data[LIST].clone()
    x[0] = old.data()["x"][removal.rows[0]]
    order[:2] = order[:2].flip(0)
    state = {name: tensor.clone() for name, tensor in removal.bundle.state.items()}
    next(iter(state.values())).flatten()[0] += 1
    lies: dict[str, tuple[str, Bundle]] = {
        "a row is still there": ("program_root", replace(removal.bundle, data={**removal.bundle.data, "x": x})),
        "another order": ("data_root", replace(removal.bundle, data={**removal.bundle.data, LIST: order})),
        "another beginning": ("initial_state_root", replace(removal.bundle, state=state)),
        "rarer checkpoints": ("checkpoint_interval", replace(removal.bundle, checkpoint_interval=INTERVAL + 1)),
    }
    for lie, (field, bundle) in lies.items():
        made = fresh(bundle, tmp_path / lie, old)
        receipt = signed(tmp_path, intoto.document_of({}, "urn:tiebreak:removal:1", {}))
        with pytest.raises(VerificationError, match=f"expected {field} .* without the rows, got"):
            check_removal(receipt, old, made)
        cases()


def test_an_edited_checkpoint_is_found_out(
    old: RunDirectory, removal: Removal, new: RunDirectory, tmp_path: Path
) -> None:
    """In a file of the new run; and in the run from which a trainer goes on, if it says that this was another one."""
    copy = shutil.copytree(new.path, tmp_path / "new")
    flip(RunDirectory.open(copy).state_path(removal.shared))
    with pytest.raises(VerificationError, match="state after step"):
        check_removal(copy / RECEIPT, old, RunDirectory.open(copy))
    edited = RunDirectory.open(shutil.copytree(old.path, tmp_path / "edited"))
    state = edited.state(removal.shared)
    next(iter(state.values())).flatten()[0] += 1
    edited.write_state(removal.shared, state)
    with pytest.raises(VerificationError, match="state after step"):
        resumed(Removal.of(edited, removal.rows), tmp_path / "refused")
    count, records = removal.shared // INTERVAL, edited.records()
    changed = make_record(removal.shared, state, records[count - 1].loss_bits)
    raw = b"".join(one.encode() for one in [*records[: count - 1], changed, *records[count:]])
    (edited.path / RECORDS).write_bytes(raw)
    made = resumed(Removal.of(edited, removal.rows), tmp_path / "made")
    with pytest.raises(VerificationError, match="expected records of the run before"):
        check_removal(made.path / RECEIPT, old, made)


def array_file(path: Path, **values: Tensor) -> Path:
    save_file(values, path)
    return path


@pytest.fixture
def run(parties: Parties) -> Path:
    return parties.path("run")


def test_the_command_removes_rows_and_checks_its_receipt(
    run: Path, parties: Parties, tmp_path: Path, command: Commands
) -> None:
    """Rows as numbers or by their values, and then it is proven that they are not there."""
    data, key = load_file(run / DATA), parties.path("trainer.pem")
    named, values = tmp_path / "rows.json", array_file(tmp_path / "x.safetensors", x=data["x"][13])
    for name, text in (("list", "[13, 4]"), ("lines", "13\n4\n")):
        named.write_text(text)
        out, err = command.printed(
            "data", "unlearn", run, "--rows", named, "-o", tmp_path / name, "--key", key, "--json"
        )
        assert "no removed row was read up to the checkpoint of step" in err
        found = json.loads(out)
        assert found["rows"] == [4, 13]
        assert command.tell("data", "check", tmp_path / name / RECEIPT, tmp_path / name, "--before", run) == found
    assert (tmp_path / "list" / RECORDS).read_bytes() == (tmp_path / "lines" / RECORDS).read_bytes()
    line = command.error("data", "check", tmp_path / "list" / RECEIPT, run, "--before", run, code=2)
    assert "expected data without some of 20 rows" in line
    line = command.error("data", "check", tmp_path / "list" / RECEIPT, tmp_path / "lines", "--before", run, code=2)
    assert "expected what both runs say" in line
    for hostile in (
        b"",
        b"{}",
        b"[" * 10_000,
        b"{" + b" " * (1 << 18),
        (tmp_path / "list" / RECEIPT).read_bytes()[:-9],
    ):
        (tmp_path / "hostile").write_bytes(hostile)
        line = command.error("data", "check", tmp_path / "hostile", tmp_path / "list", "--before", run, code=2)
        assert line.startswith("EncodingError: ")
        assert len(line) < 300
    command("data", "absent", tmp_path / "list", "--values", values, "-o", tmp_path / "absence")
    assert command.tell("data", "check", tmp_path / "absence", tmp_path / "list")["holds"] is True
    command("data", "unlearn", run, "--rows", values, "-o", tmp_path / "one", "--key", key)
    assert command.tell("data", "check", tmp_path / "one" / RECEIPT, tmp_path / "one", "--before", run)["rows"] == [13]
    command("audit", tmp_path / "one", "--output", tmp_path / "audit", "--threads", "1")
    named.write_text("13, four")
    line = command.error("data", "unlearn", run, "--rows", named, "-o", tmp_path / "no", "--key", key)
    assert "expected numbers of rows, as a JSON list or lines, got" in line


@pytest.mark.slow
def test_a_text_across_two_windows_is_proven_and_removed_with_both(
    run: Path, parties: Parties, tmp_path: Path, command: Commands
) -> None:
    copy, key = shutil.copytree(run, tmp_path / "copy"), parties.path("trainer.pem")
    (copy / TUNING).write_text("{}")
    text = load_file(run / DATA)["x"].flatten()[75:81]
    values, proof = array_file(tmp_path / "x.safetensors", x=text), tmp_path / "proof"
    made = command.tell("data", "prove", copy, "--values", values, "-o", proof)
    assert command.tell("data", "check", proof, run)["parts"] == made["parts"]
    (part,) = made["parts"]
    assert (part["row"], part["first_element"], part["values"]) == ("parts of rows 12 to 13", 75, text.tolist())
    found = command.tell("data", "exposure", copy, "--values", values)
    reads = [{**r, "row": n} for n in (12, 13) for r in command.tell("data", "exposure", run, "--row", n)["reads"]]
    assert (found["row"], found["reads"]) == ([12, 13], reads)
    command("data", "unlearn", copy, "--rows", values, "-o", tmp_path / "new", "--key", key)
    receipt = tmp_path / "new" / RECEIPT
    assert command.tell("data", "check", receipt, tmp_path / "new", "--before", copy)["rows"] == [12, 13]
    line = command.error("data", "absent", tmp_path / "new", "--values", values)
    assert "windows of packed text" in line
