"""What needs no torch, as it is installed for that, and where all that only POSIX has is missing.

These files also run by themselves, on macOS and Windows, where nothing else is installed:
`python -m pytest --noconftest tests/light`.
"""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tiebreak.api.corpus import programs
from tiebreak.api.signing.keys import new_key
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.tags import Digest

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "compatibility" / "2026-11-29"
EXPECTED = json.loads((FILES / "expected.json").read_text())
WAYS = {"as it is": ["-m", "tiebreak"], "blocked": [str(Path(__file__).with_name("blocked.py"))]}


class Here:
    """Runs `tiebreak` in a process of its own, in one of two ways."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way, self.folder = way, folder

    def __call__(self, *words: str | Path, code: int = 0, text: str = "") -> str:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TIEBREAK_PASSPHRASE": "correct horse battery",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, *WAYS[self.way], *map(str, words)], capture_output=True, text=True, encoding="utf-8",
            env=environment, cwd=self.folder, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert text in done.stderr
        return done.stdout

    def tell(self, *words: str | Path, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


# Where torch is installed, other tests run these commands as they are.
@pytest.fixture(params=[pytest.param("as it is", marks=[pytest.mark.nightly] * bool(find_spec("torch"))), "blocked"])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    shutil.copytree(FILES, tmp_path / "files")
    return Here(request.param, tmp_path)


def test_weights_are_verified_and_one_wrong_bit_is_found(here: Here) -> None:
    model, certificate = here.folder / "files" / "model.safetensors", here.folder / "files" / "certificate.json"
    signers = [word for one in EXPECTED["signatures"] for word in ("--require", one["address"])]
    found = here.tell("verify", model, certificate, *signers)
    assert (found["holds"], found["run_root"]) == (True, EXPECTED["run_root"])
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    here("verify", model, certificate, *signers, code=2, text="VerificationError: ")


def test_links_are_not_followed_inside_a_folder(here: Here) -> None:
    folder = here.folder / "model"
    folder.mkdir()
    try:
        (folder / "model.safetensors").symlink_to(here.folder / "files" / "model.safetensors")
    except OSError:  # Windows lets only some accounts make links
        pytest.skip("this account may not make links")
    here("verify", folder, here.folder / "files" / "certificate.json", code=2, text="got a symbolic link")


def test_a_run_is_shown_and_its_job_judged(here: Here) -> None:
    files = here.folder / "files"
    assert EXPECTED["job"] in here("show", files / "run")
    found = here.tell("judge", files / "posts", files / "end", "--hub-key", EXPECTED["hub"])
    assert {name: found[name] for name in EXPECTED["judged"]} == EXPECTED["judged"]


def test_a_row_of_the_data_is_proven_and_checked(here: Here) -> None:
    files = here.folder / "files"
    made = here.tell("data", "prove", files / "run", "--row", "3", "-o", "row.proof")
    found = here.tell("data", "check", "row.proof", files / "certificate.json")
    assert (found["holds"], found["job"], found["parts"]) == (True, EXPECTED["job"], made["parts"])
    assert here.tell("data", "exposure", files / "run", "--row", "3")["reads"]
    (here.folder / "row.proof").write_bytes(b"junk")
    here("data", "check", "row.proof", files / "run", code=2, text="EncodingError: proof: ")


def test_keys_are_made_and_read(here: Here) -> None:
    made = here("key", "own.pem")
    assert made.split()[-1].startswith("0x")
    assert "BEGIN PUBLIC KEY" in here("key", "own.pem", "--public")
    here("key", "own.pem", code=1, text="already exists")


@pytest.mark.parametrize("is_true", [True, False])
def test_corpus_statements_are_checked(here: Here, is_true: bool) -> None:
    program = programs.read(programs.names(programs.CORPUS)[0], programs.CORPUS)
    expected = Digest(bytes.fromhex(program.expected.run_root))
    computed = programs.ComputedRun(
        program=program.name, device="cpu", backend="C", root=expected if is_true else Digest(bytes(32)),
        expected=expected, milliseconds=1, problem="" if is_true else "another root",
    )  # fmt: skip
    statement = programs.CorpusStatement(
        programs={program.name: program.digest}, note="", computed=(computed,), environment={"cpu": "none"}
    )
    signed = sign(Envelope(payload=statement.payload), new_key())
    (here.folder / "statement.json").write_bytes(signed.encode())
    assert here.tell("corpus", "check", "statement.json", code=0 if is_true else 2)["equal"] is is_true


def test_a_claim_of_ownership_is_challenged(here: Here) -> None:
    claim, run = here.folder / "claim", here.folder / "files" / "run"
    shutil.copytree(run, claim, ignore=shutil.ignore_patterns("data.safetensors", "*.jsonl", "checkpoints"))
    (claim / "changes.bin").write_bytes(struct.pack("<3f", 0.5, 0.25, 0.125))
    asked = here.tell("ownership", "check", claim, "--challenge", "challenge.json")
    assert asked["segments"] == 3
    assert (here.folder / "challenge.json").is_file()


def test_what_needs_torch_says_how_to_install_it(here: Here) -> None:
    there = here.way != "blocked" and find_spec("torch") is not None
    for words in (["train", "files/run", "--key", "files/trainer.pem"], ["corpus", "run"], ["doctor"]):
        here(*words, "--help") if there else here(
            *words, code=1, text="torch; install it by: pip install 'tiebreak[train]'"
        )


def test_names_that_need_torch_say_how_to_install_it() -> None:
    code = "import sys\nsys.modules['torch'] = None\nimport tiebreak\nassert 'Task' in dir(tiebreak)\ntiebreak.Task"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stderr.endswith(
        "tiebreak.Task needs PyTorch, which is not installed; install it by: pip install 'tiebreak[train]'\n"
    )
