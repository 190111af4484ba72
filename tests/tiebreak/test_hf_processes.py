"""`tiebreak.hf.train` in several processes: the run of one with the batches of all, and the logs of the original."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiebreak
from tests.parts import slow_except
from tests.source_tree import ROOT
from tests.tiebreak.parties import Once

pytestmark = pytest.mark.slow
SCRIPT = ROOT / "tests/tiebreak/launched.py"
UNLIKE = ("runtime", "per_second", "preparation_time", "total_flos")
"""Times, and what counts padding, which is that of the whole batch."""
Start = tuple[int, str, str, Path, int, dict[str, Any]]
"""The number of processes, what is trained, by whose loop, its folder, the batch of each process, more arguments."""
NONE: dict[str, Any] = {"check": "none"}
"""For what another start has checked already."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets processes that are started anew import the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def trained(*starts: Start) -> tuple[list[list[int]], str]:
    """Trains each, one after the other; the exit codes of their processes, and what they have printed."""
    given = json.dumps([(count, kind, whose, str(folder), *rest) for count, kind, whose, folder, *rest in starts])
    done = subprocess.run(
        [sys.executable, SCRIPT, given], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
    )
    codes: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    assert [len(each) for each in codes] == [count for count, *_ in starts]
    return codes, done.stderr


def logs(folder: Path, rank: int = 0) -> list[dict[str, float]]:
    lines = json.loads((folder / f"log-{rank}.json").read_text())
    return [{n: v for n, v in line.items() if not any(part in n for part in UNLIKE)} for line in lines]


def assert_near(mine: list[dict[str, float]], theirs: list[dict[str, float]], loss: float = 1e-6) -> None:
    assert len(mine) == len(theirs) > 5
    for ours, original in zip(mine, theirs, strict=True):
        assert ours == pytest.approx(original, rel=5e-5, abs=1e-5)
        for name in ours.keys() & {"loss", "eval_loss", "train_loss"}:
            assert ours[name] == pytest.approx(original[name], rel=loss)


def root(folder: Path) -> str:
    found = tiebreak.open_run(folder / "run")
    assert found.finished
    return found.root


COUNTS = {"sft": (1, 4), "dpo": (1, 2, 4), "classification": (1, 2), "accumulation": (2, 4)}


@pytest.mark.parametrize("kind", slow_except(COUNTS, nightly=("dpo", "classification")))
def test_the_number_of_processes_is_in_no_root_and_logs_are_the_launched_originals(tmp_path: Path, kind: str) -> None:
    """With shards on every process. Rows of DPO's batches are no examples: each reports on all of them."""
    first, *others = COUNTS[kind]
    more: dict[str, Any] = {} if kind == "accumulation" else {"max_steps": 10}
    starts: list[Start] = [(first, kind, "ours", tmp_path / str(first), 4 // first, more)]
    starts += [(count, kind, "ours", tmp_path / str(count), 4 // count, more | NONE) for count in others]
    codes, said = trained(*starts, (2, kind, "theirs", tmp_path / "theirs", 2, more))
    assert not any(map(any, codes)), said
    assert "rehearsed on the CPU" not in said
    assert len({root(tmp_path / str(count)) for count in COUNTS[kind]}) == 1
    for count in (count for count in COUNTS[kind] if count > 1):
        assert_near(logs(tmp_path / str(count)), logs(tmp_path / "theirs"), 5e-6 if kind == "dpo" else 1e-6)
        assert logs(tmp_path / str(count)) == logs(tmp_path / str(count), 1)
        ends = [json.loads((tmp_path / str(count) / f"drawn-{rank}.json").read_text()) for rank in range(count)]
        # The others draw a batch to compare it (and evaluations'); their random numbers go on as the first one's.
        assert kind == "classification" or ends[1:] == [[1, ends[0][1]]] * (count - 1)
        assert not [*(tmp_path / str(count)).glob("*.batches")]
    saved = [
        sorted(path.name for path in (tmp_path / name).glob("checkpoint-*")) for name in (str(others[-1]), "theirs")
    ]
    assert saved[0] == saved[1]
    assert tiebreak.open_run(tmp_path / str(others[-1]) / "run").audit(sample=1, seed="1").agrees


REFUSED: dict[str, dict[str, Any]] = {
    "average_tokens_across_devices=False: a loss by how examples": {"average_tokens_across_devices": False},
    "others in process 1 (here ": {"lacks": 1},
}  # fmt: skip
STOPS: dict[str, Any] = {"stops": (1, 6)}


def make_uneven(folder: Path) -> None:
    """One process after the other shares the imports of all."""
    folder.mkdir()
    run = folder / "run"
    codes, said = trained(
        (2, "uneven", "ours", folder / "whole", 2, {}), (2, "uneven", "theirs", folder / "theirs", 2, {}),
        (2, "uneven", "ours", run, 2, NONE | {"dies": (0, "on_step_begin", 0)}),
        (2, "uneven", "ours", run, 2, NONE | {"dies": (1, "on_step_end", 7)}),
        (2, "uneven", "ours", run, 2, NONE | {"dies": (1, "on_prediction_step", 10)}),
        (1, "uneven", "ours", run, 2, NONE | {"dies": (0, "on_step_end", 12)}), (3, "uneven", "ours", run, 2, NONE),
        (2, "uneven", "ours", folder / "stopped", 2, NONE | STOPS),
        *((2, "accumulation", "ours", folder / "refused", 2, more) for more in REFUSED.values()),
    )  # fmt: skip
    (folder / "found.json").write_text(json.dumps([codes, said]))


@pytest.fixture
def uneven(once: Once) -> Path:
    """Trainings of `make_uneven`; `found.json` has exit codes and words."""
    return once("uneven processes", make_uneven)


def test_another_number_of_processes_goes_on_after_one_is_killed(uneven: Path) -> None:
    """Epochs end unevenly, and are filled up as accelerate does. Nobody ends the others, who say who is gone."""
    codes, said = json.loads((uneven / "found.json").read_text())
    assert codes[:7] == [[0, 0], [0, 0], [-9, 1], [1, -9], [1, -9], [-9], [0] * 3], said
    for gone in ("lost the rendezvous, which torchrun keeps, or without it worker 0", "lost worker 1 of 2"):
        assert f"WorkerLost: {gone}; what is committed stays, start any number of workers to go on" in said
    whole, run = uneven / "whole", uneven / "run"
    assert root(run) == root(whole)
    assert_near(logs(whole), logs(uneven / "theirs"))
    found = [[line["loss"] for line in logs(folder) if "loss" in line] for folder in (run, whole)]
    assert found[0] == found[1]


def test_what_the_callback_of_one_process_asks_for_all_do_and_all_get_a_certified_loss(uneven: Path) -> None:
    codes, said = json.loads((uneven / "found.json").read_text())
    assert codes[7] == [0, 0], said
    folder = uneven / "stopped"
    assert tiebreak.open_run(folder / "run").step == 10
    *_, last, _, certified = logs(folder)
    assert last["step"] == certified["step"] == 10
    assert certified["eval_loss"] == pytest.approx(last["eval_loss"], rel=0.05)  # in batches of one process
    assert certified == logs(folder, 1)[-1]
    assert (folder / "eval-10").is_dir()


def test_what_no_run_in_several_processes_follows_is_refused_by_all(uneven: Path) -> None:
    codes, said = json.loads((uneven / "found.json").read_text())
    assert codes[8:] == [[1, 1]] * len(REFUSED)
    for reason in REFUSED:
        assert said.count(f"got {reason}") == 2


def test_torchrun_names_a_killed_process_and_accelerate_launch_goes_on(tmp_path: Path) -> None:
    """On CPUs `accelerate launch` needs --multi_gpu, without which it starts one process, or mpirun."""

    def launch(module: str, options: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        saves = {"save_strategy": "steps", "save_steps": 2}
        given = json.dumps(["accumulation", "ours", str(tmp_path), 2, NONE | saves | more])
        command = [sys.executable, "-m", module, *options, str(SCRIPT), given]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    lost = launch("torch.distributed.run", ["--standalone", "--nproc-per-node", "2"], dies=(1, "on_step_end", 5))
    assert lost.returncode
    assert "exitcode  : -9" in lost.stderr
    assert "what is committed stays, start any number of workers to go on" in lost.stderr
    assert tiebreak.open_run(tmp_path / "run").step == 4
    accelerate = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0"]
    done = launch("accelerate.commands.launch", accelerate)
    assert done.returncode == 0, done.stderr
    assert tiebreak.open_run(tmp_path / "run").finished
    assert logs(tmp_path) == logs(tmp_path, 1)
