"""`tiebreak data prove`, `exposure`, `absent` and `check`, on a run that commands made."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiebreak.parties import STEPS, Commands, Parties, flip
from tiebreak.api.certification.job_data import JobData
from tiebreak.api.training.settings import TUNING
from tiebreak.engine.run.directory import DATA, RunDirectory
from tiebreak.protocol.commitments.data_proofs import DataProof
from tiebreak.protocol.commitments.records import identify
from tiebreak.protocol.program.isa import DType


@pytest.fixture
def run(parties: Parties) -> Path:
    return parties.path("run")


@pytest.fixture
def certificate(parties: Parties, once: Callable[..., Path], tmp_path: Path, command: Commands, run: Path) -> Path:
    command("weights", run, "-o", tmp_path / "model.safetensors")
    key = parties.path("trainer.pem")
    command(
        "certify", run, "--weights", tmp_path / "model.safetensors", "--key", key, "-o", tmp_path / "certificate.json"
    )
    return tmp_path / "certificate.json"


def array(folder: Path, **values: torch.Tensor) -> Path:
    save_file(values, folder / "values.safetensors")
    return folder / "values.safetensors"


def test_a_row_is_proven_to_whoever_has_the_certificate(
    run: Path, certificate: Path, tmp_path: Path, command: Commands
) -> None:
    data, proof = load_file(run / DATA), tmp_path / "row.proof"
    made = command.tell("data", "prove", run, "--row", 7, "-o", proof)
    for agreed in (certificate, run):
        found = command.tell("data", "check", proof, agreed)
        assert (found["holds"], found["job"]) == (True, RunDirectory.open(run).job.id.hex())
        assert found["parts"] == made["parts"]
        parts = {part["entry"]: part for part in found["parts"]}
        assert {name: part["values"] for name, part in parts.items()} == {
            "x": data["x"][7].tolist(),
            "y": [data["y"][7]],
        }
        assert {part["row"] for part in parts.values()} == {7}
        assert (parts["x"]["also_shown"], parts["y"]["also_shown"]) == (
            "parts of rows 0 to 19",
            "parts of rows 0 to 19",
        )
    assert made["bytes"] == proof.stat().st_size <= 2000
    assert "also_shown" in command("data", "check", proof, certificate)


def test_a_proof_for_another_job_is_refused(run: Path, parties: Parties, tmp_path: Path, command: Commands) -> None:
    """The same task on data that differ in one element."""
    text = parties.path("task.py").read_text().replace("model = Net()", "model = Net()", 1)
    (tmp_path / "task.py").write_text(text.replace("randint(0, 3, (20,), generator=generator)", "arange(20) % 3"))
    command("capture", tmp_path / "task.py", "-o", tmp_path / "captured")
    command("agree", tmp_path / "captured", *parties.keys, "-o", tmp_path / "other")
    command("data", "prove", tmp_path / "other", "--row", 7, "-o", tmp_path / "proof")
    command("data", "check", tmp_path / "proof", tmp_path / "other")
    assert "expected data root" in command.error("data", "check", tmp_path / "proof", run, code=2)


def test_rows_are_found_by_their_content(run: Path, tmp_path: Path, command: Commands) -> None:
    data = load_file(run / DATA)
    assert command.tell("data", "exposure", run, "--values", array(tmp_path, x=data["x"][13]))["row"] == 13
    assert command.tell("data", "exposure", run, "--values", array(tmp_path, x=data["x"][13][2:5]))["row"] == 13
    first = int((data["y"] == 2).nonzero()[0])
    assert command.tell("data", "exposure", run, "--values", array(tmp_path, y=torch.tensor(2)))["row"] == first
    across = data["x"].flatten()[75:81]
    for values in (across, data["x"][13] + 1):
        line = command.error("data", "exposure", run, "--values", array(tmp_path, x=values))
        assert line.endswith("expected --row or --values of one of 20 rows, got None")


def test_the_steps_that_read_a_row_are_all_draws_of_its_epochs(run: Path, command: Commands) -> None:
    """Seven steps of four draws from 20 rows: five steps are an epoch, so that each row has one or two reads."""
    reads = [command.tell("data", "exposure", run, "--row", row)["reads"] for row in range(20)]
    assert sorted((r["step"], r["place"]) for of_row in reads for r in of_row) == [
        (step, place) for step in range(1, STEPS + 1) for place in range(4)
    ]
    assert [[r["epoch"] for r in of_row] for of_row in reads if len(of_row) > 1] == [[1, 2]] * 8
    assert all(of_row[0]["epoch"] == 1 for of_row in reads)
    assert "step" in command("data", "exposure", run, "--row", 3)


def test_a_row_is_proven_absent_where_the_data_are(
    run: Path, certificate: Path, tmp_path: Path, command: Commands
) -> None:
    values, proof = array(tmp_path, x=load_file(run / DATA)["x"][3] * 2), tmp_path / "absence.proof"
    made = command.tell("data", "absent", run, "--values", values, "-o", proof)
    assert made["bytes"] <= 2000
    assert "may be there" in made["note"]
    found = command.tell("data", "check", proof, run)
    assert (found["holds"], found["parts"][0]["row"], found["index"]) == (True, "absent", made["index"])
    assert found["parts"][0]["values"] == (load_file(run / DATA)["x"][3] * 2).tolist()
    out, _ = command.printed("data", "check", proof, certificate, "--json", code=3)
    assert (json.loads(out)["holds"], json.loads(out)["index"]) == (None, made["index"])


def test_an_index_without_a_row_is_found_out_by_the_data(
    run: Path, certificate: Path, tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forger has the id of no row in the place of row 3's. Only the data can tell."""
    row = load_file(run / DATA)["x"][3]
    values, proof, index = array(tmp_path, x=row), tmp_path / "absence.proof", JobData.index
    assert command.error("data", "absent", run, "--values", values).endswith("got those of row 3")
    hidden = identify(DType.F32, (6,), row.numpy().tobytes())
    with monkeypatch.context() as patch:
        patch.setattr(JobData, "index", lambda self, name: sorted({*index(self, name), bytes([7] * 32)} - {hidden}))
        command("data", "absent", run, "--values", values, "-o", proof)
    command.printed("data", "check", proof, certificate, code=3)
    assert "index of x: expected root" in command.error("data", "check", proof, run, code=2)


def test_a_row_of_the_wrong_kind_or_number_is_refused(run: Path, tmp_path: Path, command: Commands) -> None:
    x = load_file(run / DATA)["x"][3]
    for values, text in (
        ({"z": x}, "expected one array, of values of x (F32), y (I64), got z"),
        ({"x": x, "y": torch.ones(1)}, "expected one array"),
        ({"x": x.double()}, "expected one array"),
        ({"x": torch.zeros(200)}, "expected one array"),
    ):
        assert text in command.error("data", "absent", run, "--values", array(tmp_path, **values))
    assert "expected 24 bytes" in command.error("data", "absent", run, "--values", array(tmp_path, x=x[:3]))
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    assert "expected" in command.error("data", "absent", run, "--values", tmp_path / "junk.safetensors")
    for words in (["--row", 20], []):
        assert "of one of 20 rows" in command.error("data", "prove", run, *words, "-o", tmp_path / "proof")
    assert not (tmp_path / "proof").exists()


def test_changed_data_are_not_proven(run: Path, tmp_path: Path, command: Commands) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    flip(copy / DATA)
    assert "expected root" in command.error("data", "prove", copy, "--row", 1, "-o", tmp_path / "proof", code=2)


def test_windows_of_packed_text_are_opened_but_their_absence_is_refused_in_words(
    run: Path, tmp_path: Path, command: Commands
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / TUNING).write_text("{}")
    line = command.error("data", "absent", copy, "--values", array(tmp_path, x=torch.ones(6)))
    assert "windows of packed text: a text may stand across two of them" in line
    command("data", "prove", copy, "--row", 1, "-o", tmp_path / "proof")


def hostile(proof: DataProof) -> dict[str, bytes]:
    whole = proof.encode()
    return {
        "empty": b"", "text": b"{}", "cut": whole[:-1], "more": whole + b"\0", "bomb": zlib.compress(bytes(1 << 27)),
        "nested": zlib.compress(b"\x91" * 10_000), "huge": bytes(1 << 22) + b"0",
        "another version": zlib.compress(b"\x92\x02\x90"),
    }  # fmt: skip


def test_hostile_proofs_take_one_line_and_exit_code_2(run: Path, tmp_path: Path, command: Commands) -> None:
    command("data", "prove", run, "--row", 7, "-o", tmp_path / "row.proof")
    for name, content in hostile(DataProof.decode((tmp_path / "row.proof").read_bytes())).items():
        (tmp_path / "hostile").write_bytes(content)
        line = command.error("data", "check", tmp_path / "hostile", run, code=2)
        assert line.startswith("EncodingError: "), name
        assert len(line) < 300
