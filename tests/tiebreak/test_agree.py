"""Keys, and the signed job that comes of a captured one."""

import stat
from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.tiebreak.test_bundle import TASK
from tiebreak.api.bundle import ORIGINS, STATE, load_bundle
from tiebreak.api.offers import objections, open_offer
from tiebreak.cli.key import PASSPHRASE_VARIABLE, load_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.cli.terms import AddressType, Ether
from tiebreak.engine.logged.calibration import proven_policy
from tiebreak.engine.logged.policy import policy_of
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.node.parties import draw_secret
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.seats import drawable, nonce_of
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties.terms import Pace

PACE = Pace(block_seconds=12, step_seconds=1)
PASSPHRASE = "correct horse battery"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agree")
    (folder / "line.py").write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)
        assert run(tiebreak, ["key", str(folder / "client.pem")]) == 0
        assert run(tiebreak, ["key", str(folder / "trainer.pem")]) == 0
        assert run(tiebreak, ["capture", str(folder / "line.py"), "-o", str(folder / "captured")]) == 0
    return folder


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, PASSPHRASE)


def arguments(work: Path, output: Path, *more: str, captured: Path | None = None) -> list[str]:
    keys = ["--client-key", str(work / "client.pem"), "--trainer-key", str(work / "trainer.pem")]
    return ["agree", str(captured or work / "captured"), *keys, "--output", str(output), *more]


def test_a_key_is_for_its_owner_and_is_not_overwritten(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = work / "client.pem"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert b"ENCRYPTED" in before
    assert run(tiebreak, ["key", str(path)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_key_prints_its_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiebreak, ["key", str(tmp_path / "k.pem")]) == 0
    assert capsys.readouterr().out.strip() == f"0x{load_key(tmp_path / 'k.pem').address.hex()}"


def test_a_wrong_passphrase_is_a_configuration_error(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong horse battery")
    assert run(tiebreak, arguments(work, tmp_path / "run")) == 1
    assert "wrong passphrase" in capsys.readouterr().err


def test_the_passphrase_is_asked_for_without_the_variable(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PASSPHRASE_VARIABLE)
    asked = []
    monkeypatch.setattr(click, "prompt", lambda text, **options: asked.append((text, options)) or PASSPHRASE)
    load_key(work / "client.pem")
    ((text, options),) = asked
    assert "client.pem" in text
    assert options["hide_input"] is True


def test_agree_makes_a_run_both_signed(work: Path, tmp_path: Path) -> None:
    more = ["--reward", "0.25", "--trainer-stake", "2", "--clock", "60", "--replay-time", "9"]
    more += ["--descent-levels", "4", "--nonce", "7"]
    assert run(tiebreak, arguments(work, tmp_path / "run", *more)) == 0
    made = RunDirectory.open(tmp_path / "run")
    job, roots = made.job, load_bundle(work / "captured").roots()
    assert job.client == load_key(work / "client.pem").address
    assert job.trainer == load_key(work / "trainer.pem").address
    assert (job.reward, job.trainer_stake, job.challenger_stake) == (25 * 10**16, 2 * 10**18, 10**17)
    assert (job.clock, job.replay_time, job.descent_levels, job.nonce) == (60, 9, 4, 7)
    assert (job.steps, job.checkpoint_interval) == (4, 2)
    assert job.program_root.hex() == roots["program_root"]
    assert job.initial_state_root.hex() == roots["initial_state_root"]
    assert job.data_root.hex() == roots["data_root"]
    assert set(made.state(0)) == set(load_bundle(work / "captured").state)


def test_policy_and_precision(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.json"
    policy = proven_policy(28)
    policy.save(file)
    for more, expected, said in [
        ([], (0, 32, 0), "exact, 32 bits"),
        (["--precision", "20"], (0, 20, 0), "exact, 20 bits"),
        (["--policy", str(file)], (1, 28, policy.tolerances_packed), "logged, 28 bits, within plain 2^-"),
        (["--policy", str(file), "--precision", "28"], (1, 28, policy.tolerances_packed), "logged, 28 bits"),
    ]:
        output = tmp_path / "-".join(["run", *(str(n) for n in expected), str(len(more))])
        assert run(tiebreak, arguments(work, output, *more)) == 0
        assert f"policy  {said}" in capsys.readouterr().out
        made = RunDirectory.open(output)
        assert (made.job.policy, made.job.precision, made.job.tolerances) == expected
        assert policy_of(made) == (policy if expected[0] else None)
    output = tmp_path / "none"
    assert run(tiebreak, arguments(work, output, "--policy", str(file), "--precision", "32")) == 1
    assert "expected precision 28 of the policy file, got 32" in capsys.readouterr().err
    file.write_text("{}")
    assert run(tiebreak, arguments(work, output, "--policy", str(file))) == 2
    assert "expected a field 'version'" in capsys.readouterr().err
    assert not output.exists()


def test_a_damaged_capture_is_not_signed(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "captured"
    copy.mkdir()
    for path in (work / "captured").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content = bytearray((copy / STATE).read_bytes())
    content[-1] ^= 1
    (copy / STATE).write_bytes(content)
    assert run(tiebreak, arguments(work, tmp_path / "run", captured=copy)) == 2
    assert "initial_state_root" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "wei"), [("1", 10**18), ("0.25", 25 * 10**16), ("0", 0), ("1e-18", 1), (".000000000000000001", 1)]
)
def test_amounts_are_exact(text: str, wei: int) -> None:
    assert Ether().convert(text, None, None) == wei


@pytest.mark.parametrize("text", ["1e-19", "-1", "nan", "inf", "one", "", "0.0000000000000000001"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected an amount"):
        Ether().convert(text, None, None)


def test_addresses() -> None:
    assert AddressType().convert("0x" + "Ab" * 20, None, None) == b"\xab" * 20
    for text in ("0x12", "zz" * 20, "0x" + "ab" * 21, "", "0x" + "١" * 40):
        with pytest.raises(click.BadParameter, match="40 hex digits"):
            AddressType().convert(text, None, None)


@pytest.mark.parametrize(
    ("wei", "text"),
    [
        (0, "0 ether"), (10**18, "1 ether"), (-(10**18), "-1 ether"), (25 * 10**16, "0.25 ether"),
        (1, "0.000000000000000001 ether"), (1234 * 10**18 + 10**17, "1,234.1 ether"),
    ],
)  # fmt: skip
def test_amounts_are_told_in_ether_exactly(wei: int, text: str) -> None:
    assert ether(wei) == text


def test_a_job_with_seats_can_be_drawn_by_its_client(work: Path, tmp_path: Path) -> None:
    seats = ["--seats", "2", "--seat-fee", "0.1", "--seat-bond", "0.2", "--nonce", "5"]
    assert run(tiebreak, arguments(work, tmp_path / "run", *seats)) == 0
    assert (tmp_path / "run" / ORIGINS).read_bytes() == (work / "captured" / ORIGINS).read_bytes()
    job, client = RunDirectory.open(tmp_path / "run").job, load_key(work / "client.pem")
    drawn, secret = drawable(replace(job, nonce=5), client)
    assert drawn == job
    assert job.nonce == nonce_of(secret) != nonce_of(drawable(replace(job, nonce=6), client)[1])
    assert secret != drawable(replace(job, nonce=5), load_key(work / "trainer.pem"))[1]


# ---------------------------------------------------------------- the same on two machines


def offer_arguments(work: Path, output: Path, *more: str) -> list[str]:
    trainer = f"0x{load_key(work / 'trainer.pem').address.hex()}"
    keys = ["--key", str(work / "client.pem"), "--trainer", trainer]
    return ["offer", str(work / "captured"), *keys, "--output", str(output), *more]


def test_an_offer_with_seats_needs_a_chain(work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seats = ["--seats", "2", "--seat-fee", "0.1", "--seat-bond", "0.2", "--nonce", "5"]
    assert run(tiebreak, offer_arguments(work, tmp_path / "no", *seats)) == 1
    assert "expected a job without seats, because there is no chain to draw them, got one" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    place = ["--chain-id", "7", "--contract", "0x" + "11" * 20]
    assert run(tiebreak, offer_arguments(work, tmp_path / "offer", *seats, *place)) == 0
    offered, client = open_offer(tmp_path / "offer"), load_key(work / "client.pem")
    secret = draw_secret(offered.job, client, offered.path)
    assert offered.job.nonce == nonce_of(secret)
    assert objections(offered, PACE) == ()
    agreement = offered.agreement
    moved = replace(agreement, domain=OFF_CHAIN)
    assert "no chain to draw" in str(objections(RunDirectory(offered.path, moved, offered.program), PACE))
    (offered.path / "draft.txt").write_text("6")
    with pytest.raises(VerificationError, match="expected the nonce of the job's draft, got another"):
        draw_secret(offered.job, client, offered.path)
    (offered.path / "draft.txt").unlink()
    with pytest.raises(VerificationError, match="expected the nonce of the job's draft, got"):
        draw_secret(offered.job, client, offered.path)


def accept_arguments(work: Path, folder: Path, *more: str) -> list[str]:
    return ["accept", str(folder), "--key", str(work / "trainer.pem"), "--step-seconds", "1", *more]


def test_two_machines_sign_the_job_that_one_would(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terms = ["--reward", "2", "--descent-levels", "3", "--nonce", "7"]
    assert run(tiebreak, arguments(work, tmp_path / "one", *terms)) == 0
    assert run(tiebreak, offer_arguments(work, tmp_path / "two", *terms)) == 0
    assert run(tiebreak, accept_arguments(work, tmp_path / "two")) == 0
    said = capsys.readouterr().out
    assert "terms   leave an honest trainer enough time" in said
    assert RunDirectory.open(tmp_path / "two").agreement == RunDirectory.open(tmp_path / "one").agreement
    assert f"signed  0x{RunDirectory.open(tmp_path / 'two').agreement.trainer_signature.hex()}" in said


def test_terms_that_could_cost_the_stake_are_not_signed(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiebreak, offer_arguments(work, tmp_path / "offer", "--challenge-window", "1")) == 0
    assert run(tiebreak, accept_arguments(work, tmp_path / "offer")) == 1
    told = capsys.readouterr()
    assert "terms   expected a window of at least" in told.out
    assert "nothing is signed" in told.err
    assert not (tmp_path / "offer" / "job.bin").exists()
    judged = ["accept", str(tmp_path / "offer"), "--threads", "1"]
    assert run(tiebreak, judged) == 0, "without a key the terms are only judged"
    assert " s measured, 1 times" in capsys.readouterr().out
    assert run(tiebreak, accept_arguments(work, tmp_path / "offer", "--anyway")) == 0
    assert RunDirectory.open(tmp_path / "offer").job.challenge_window == 1


def test_a_logged_offer_is_accepted_with_ones_own_thresholds(work: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    proven_policy(28).save(file)
    assert run(tiebreak, offer_arguments(work, tmp_path / "offer", "--policy", str(file))) == 0
    assert not (tmp_path / "offer" / "policy.json").exists()
    proven_policy(27).save(file)
    assert run(tiebreak, accept_arguments(work, tmp_path / "offer", "--policy", str(file))) == 1
    proven_policy(28).save(file)
    assert run(tiebreak, accept_arguments(work, tmp_path / "offer", "--policy", str(file))) == 0
    assert policy_of(RunDirectory.open(tmp_path / "offer")) == proven_policy(28)
