"""A folder that somebody else prepared: no command follows its links, and an error about a file names the file."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parts import slow_except
from tests.tiebreak.parties import Commands, Parties
from tiebreak import api
from tiebreak.api.chain.chains import check as check_deployment
from tiebreak.cli.key import load_key
from tiebreak.protocol.errors import TiebreakError

Plant = Callable[[Path, Path], None]
"""Puts something at a path, given a file outside of the folder."""


def link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def pipe(path: Path, _outside: Path) -> None:
    os.mkfifo(path)


RUN_PLANTS: dict[str, Plant] = {
    **dict.fromkeys(("job.bin", "program.tbp", "data.safetensors", "records.bin", "metrics.jsonl"), link),
    **dict.fromkeys((".lock", "policy.json", "state_dict.tsv", ".job.bin.part"), link),
    **dict.fromkeys(("checkpoints", "heads", "logs"), lambda path, outside: link(path, outside.parent)),
    "checkpoints/000000000003.safetensors": link,
    "checkpoints/.000000000006.safetensors.part": link,
    "heads/000000000002.bin": link,
    "heads/.000000000002.bin.part": link,
    "heads/000000000003.bin": pipe,
}
"""Whatever a command opens, makes or deletes in the folder of a run."""
BUNDLE_PLANTS = dict.fromkeys(("bundle.json", "program.tbp", "state.safetensors", "data.safetensors"), link)
HARD = ("records.bin", "metrics.jsonl", ".lock")
"""What is changed in place: a second name of a file outside would change that file."""


def planted(folder: Path, name: str, plant: Plant, outside: Path) -> None:
    path = folder / name
    outside.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rename(outside.parent / "its own")
    elif path.exists():
        shutil.copy(path, outside)  # so that it passes for what it stands for
        path.unlink()
    if not outside.exists():
        outside.write_bytes(b"precious")
    plant(path, outside)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def commands(parties: Parties, hostile: Path, other: Path, output: Path) -> dict[str, list[str]]:
    """Every command that touches the folder of a run, with the hostile one in each place."""
    one_thread = ["--threads", "1"]
    return {
        "train": ["train", str(hostile), "--key", str(parties.path("trainer.pem")), *one_thread],
        "audit": ["audit", str(hostile), "--output", str(output), *one_thread],
        "audit into": ["audit", str(other), "--output", str(hostile), *one_thread],
        "audit a part": ["audit", str(hostile), "--segment", "1", *one_thread],
        "dispute": ["dispute", str(hostile), str(other), *one_thread],
        "dispute with": ["dispute", str(other), str(hostile), *one_thread],
        "calibrate": ["calibrate", str(hostile), "--output", str(output), "--steps", "1", *one_thread],
    }


@pytest.mark.parametrize("name", slow_except(RUN_PLANTS, *list(RUN_PLANTS)[::3]))
def test_no_command_follows_links_planted_in_a_run(
    parties: Parties, tmp_path: Path, command: Commands, cases: Callable[[], None], name: str
) -> None:
    hostile, other, outside = tmp_path / "hostile", parties.trained(tmp_path / "other"), tmp_path / "outside" / "file"
    parties.trained(hostile)
    planted(hostile, name, RUN_PLANTS[name], outside)
    before = contents(outside.parent), contents(hostile), contents(other)
    for what, arguments in commands(parties, hostile, other, tmp_path / "made").items():
        error = command(*arguments, code=3 if what.startswith("audit") else 2)
        assert str(hostile / name) in error, (what, error)
        assert "expected a plain file, got" in error or "expected a folder, got a symbolic link" in error, (what, error)
        assert (contents(outside.parent), contents(hostile), contents(other)) == before, what
        assert not (tmp_path / "made").exists(), what
        cases()


@pytest.mark.parametrize("name", BUNDLE_PLANTS)
def test_agreeing_on_a_captured_job_follows_no_link(
    parties: Parties, tmp_path: Path, command: Commands, name: str
) -> None:
    hostile, outside = shutil.copytree(parties.path("captured"), tmp_path / "hostile"), tmp_path / "outside" / "file"
    planted(hostile, name, BUNDLE_PLANTS[name], outside)
    for arguments in (["agree", hostile, *parties.keys], ["calibrate", hostile, "--steps", 1, "--threads", 1]):
        error = command(*arguments, "--output", tmp_path / "made", code=2)
        assert f"{hostile / name}: expected a plain file, got a symbolic link" in error
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", HARD)
def test_training_does_not_write_through_hard_links(
    parties: Parties, tmp_path: Path, command: Commands, name: str
) -> None:
    hostile, outside = parties.signed(tmp_path / "hostile"), tmp_path / "outside" / "file"
    planted(hostile, name, lambda path, target: path.hardlink_to(target), outside)
    before = contents(outside.parent)
    error = command("train", hostile, "--key", parties.path("trainer.pem"), code=2)
    assert f"{hostile / name}: expected a file of one name" in error
    assert contents(outside.parent) == before


def test_a_run_folder_may_be_given_as_a_symbolic_link(parties: Parties, tmp_path: Path) -> None:
    made = parties.signed(tmp_path / "run")
    (tmp_path / "latest").symlink_to(made)
    assert parties.train(tmp_path / "latest") == 0
    assert len(list((made / "heads").iterdir())) == 3


# ---------------------------------------------------------------- damaged files, but for those of runs and bundles

FILES: dict[str, Callable[[Path], object]] = {
    "trainer.pem": load_key,
    "policy.json": api.interpreters.as_policy,
    "deployment.json": lambda path: check_deployment(None, path),  # type: ignore[arg-type]  # the file is read first
}


@pytest.mark.parametrize("damage", ["empty", "text", "one byte"])
@pytest.mark.parametrize("name", FILES)
def test_errors_about_damaged_files_name_the_file(parties: Parties, tmp_path: Path, name: str, damage: str) -> None:
    path = tmp_path / name
    shutil.copy(parties.path(name if name == "trainer.pem" else "captured/program.tbp"), path)
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 0x55
    path.write_bytes({"empty": b"", "text": b"{ no }", "one byte": changed}[damage])
    with pytest.raises(TiebreakError, match=re.escape(str(path))):
        FILES[name](path)
