"""Keys, and the signed job that comes of a captured one."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from tests.tiebreak.parties import PASSPHRASE, Commands, Parties
from tiebreak.api.agreement.offers import objections, open_offer
from tiebreak.api.training.bundle import load_bundle
from tiebreak.cli.key import PASSPHRASE_VARIABLE, load_key
from tiebreak.cli.options import ADDRESS, Ether
from tiebreak.engine.logged.calibration import proven_policy
from tiebreak.engine.logged.policy import policy_of
from tiebreak.engine.run.directory import ORIGINS, TITLE, RunDirectory
from tiebreak.node.parties import draw_secret
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import FINITE_LOSSES
from tiebreak.protocol.commitments.seats import drawable, nonce_of
from tiebreak.protocol.commitments.terms import ether
from tiebreak.protocol.errors import VerificationError
from tiebreak.protocol.parties.terms import Pace

PACE = Pace(block_seconds=12, step_seconds=1)
SEATS = ["--seats", "2", "--seat-fee", "0.1", "--seat-bond", "0.2", "--nonce", "5"]


class Desk:
    """Both ways to a signed job: by one command, or by an offer and its acceptance."""

    def __init__(self, parties: Parties, command: Commands) -> None:
        self.command, self.captured, self.keys = command, parties.path("captured"), parties.keys
        self.client, self.trainer = (parties.path(f"{name}.pem") for name in ("client", "trainer"))
        self.address = parties.address("trainer")

    def agree(self, output: Path, *more: object, code: int = 0) -> str:
        return self.command("agree", self.captured, *self.keys, "--output", output, *more, code=code)

    def offer(self, output: Path, *more: object, code: int = 0) -> str:
        who = ["--client", self.client, "--trainer", self.address]
        return self.command("agree", self.captured, *who, "--output", output, *more, code=code)

    def accept(self, folder: Path, *more: object, code: int = 0) -> tuple[str, str]:
        seconds = ["--step-seconds", 1]
        return self.command.printed("agree", folder, "--trainer", self.trainer, *seconds, *more, code=code)


@pytest.fixture
def desk(parties: Parties, command: Commands) -> Desk:
    return Desk(parties, command)


def test_keys_print_their_address_and_prompt_for_a_missing_passphrase(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k.pem"
    assert desk.command("key", path).strip() == f"0x{load_key(path).address.hex()}"
    assert "already exists" in desk.command("key", path, code=1)
    monkeypatch.delenv(PASSPHRASE_VARIABLE)
    asked = []
    monkeypatch.setattr(click, "prompt", lambda text, **options: asked.append((text, options)) or PASSPHRASE)
    load_key(desk.client)
    ((text, options),) = asked
    assert "client.pem" in text
    assert options["hide_input"] is True


def test_agree_creates_a_run_that_both_parties_signed(desk: Desk, tmp_path: Path) -> None:
    more = ["--reward", "0.25", "--trainer-stake", "2", "--clock", "60", "--replay-time", "9"]
    desk.agree(tmp_path / "run", *more, "--descent-levels", 4, "--nonce", 7)
    made = RunDirectory.open(tmp_path / "run")
    job, roots = made.job, load_bundle(desk.captured).roots()
    assert job.client == load_key(desk.client).address
    assert job.trainer == load_key(desk.trainer).address
    assert (job.reward, job.trainer_stake, job.challenger_stake) == (25 * 10**16, 2 * 10**18, 10**17)
    assert (job.clock, job.replay_time, job.descent_levels, job.nonce) == (60, 9, 4, 7)
    assert (job.steps, job.checkpoint_interval) == (7, 3)
    assert job.program_root.hex() == roots["program_root"]
    assert job.initial_state_root.hex() == roots["initial_state_root"]
    assert job.data_root.hex() == roots["data_root"]
    assert set(made.state(0)) == set(load_bundle(desk.captured).state)


def test_agree_sets_policy_and_precision_of_the_job(desk: Desk, tmp_path: Path, cases: Callable[[], None]) -> None:
    file = tmp_path / "policy.json"
    policy = proven_policy(28)
    policy.save(file)
    for more, expected, said in (
        ([], (0, 32, 0), "exact, 32 bits"),
        (["--precision", "20"], (0, 20, 0), "exact, 20 bits"),
        (["--policy", str(file)], (1, 28, policy.tolerances_packed), "logged, 28 bits, within plain 2^-"),
        (["--policy", str(file), "--precision", "28"], (1, 28, policy.tolerances_packed), "logged, 28 bits"),
    ):
        output = tmp_path / "-".join(["run", *(str(n) for n in expected), str(len(more))])
        assert f"policy            {said}" in desk.agree(output, *more)
        made = RunDirectory.open(output)
        assert (made.job.policy, made.job.precision, made.job.tolerances) == expected
        assert policy_of(made) == (policy if expected[0] else None)
        cases()
    output = tmp_path / "demanding"
    assert "of a gap; losses must be finite" in desk.agree(output, "--policy", str(file), "--finite-losses")
    assert RunDirectory.open(output).job.tolerances == policy.tolerances_packed | FINITE_LOSSES
    output = tmp_path / "none"
    error = desk.agree(output, "--finite-losses", code=2)
    assert "expected policy logged if finite losses are demanded, got policy exact" in error
    error = desk.agree(output, "--policy", file, "--precision", 32, code=1)
    assert "expected precision 28 of the policy file, got 32" in error
    file.write_text("{}")
    assert "expected a field 'version'" in desk.agree(output, "--policy", file, code=1)
    assert not output.exists()


def test_ether_amounts_are_exact_and_invalid_ones_are_refused(cases: Callable[[], None]) -> None:
    for text, wei in (("1", 10**18), ("0.25", 25 * 10**16), ("0", 0), ("1e-18", 1), (".000000000000000001", 1)):
        assert Ether().convert(text, None, None) == wei
        cases()
    for wei, text in ((0, "0 ether"), (-(10**18), "-1 ether"), (1, "0.000000000000000001 ether")):
        assert ether(wei) == text
        cases()
    assert ether(1234 * 10**18 + 10**17) == "1,234.1 ether"
    for text in ("1e-19", "-1", "nan", "inf", "one", ""):
        with pytest.raises(click.BadParameter, match="expected an amount"):
            Ether().convert(text, None, None)
        cases()


def test_addresses_must_have_40_hex_digits() -> None:
    assert ADDRESS.convert("0x" + "Ab" * 20, None, None) == b"\xab" * 20
    for text in ("0x12", "zz" * 20, "0x" + "ab" * 21, "", "0x" + "١" * 40):
        with pytest.raises(click.BadParameter, match="40 hex digits"):
            ADDRESS.convert(text, None, None)


def test_the_nonce_of_a_seated_job_commits_to_its_clients_draw_secret(desk: Desk, tmp_path: Path) -> None:
    desk.agree(tmp_path / "run", *SEATS)
    assert (tmp_path / "run" / ORIGINS).read_bytes() == (desk.captured / ORIGINS).read_bytes()
    name = json.loads((desk.captured / "bundle.json").read_text())["name"]
    assert name
    assert desk.command.tell("show", tmp_path / "run")["name"] == name
    (tmp_path / "run" / TITLE).write_bytes(b"two\n\x1b[31mlines \xff")
    assert desk.command.tell("show", "--long", tmp_path / "run")["name"] == "two ?[31mlines \ufffd"
    assert re.search(r"challengerStake +0\.1 ether\n", desk.command("show", "-l", tmp_path / "run"))
    job, client = RunDirectory.open(tmp_path / "run").job, load_key(desk.client)
    drawn, secret = drawable(replace(job, nonce=5), client)
    assert drawn == job
    assert job.nonce == nonce_of(secret) != nonce_of(drawable(replace(job, nonce=6), client)[1])
    assert secret != drawable(replace(job, nonce=5), load_key(desk.trainer))[1]


# ---------------------------------------------------------------- the same on two machines


def test_an_offer_with_seats_needs_a_chain(desk: Desk, tmp_path: Path) -> None:
    error = desk.offer(tmp_path / "no", *SEATS, code=1)
    assert "expected a job without seats, because there is no chain to draw them, got one" in error
    assert not (tmp_path / "no").exists()
    desk.offer(tmp_path / "offer", *SEATS, "--chain-id", 7, "--board", "0x" + "11" * 20)
    offered, client = open_offer(tmp_path / "offer"), load_key(desk.client)
    secret = draw_secret(offered.job, client, offered.path)
    assert offered.job.nonce == nonce_of(secret)
    assert objections(offered, PACE) == ()
    moved: Any = replace(offered.agreement, domain=OFF_CHAIN)
    assert "no chain to draw" in str(objections(RunDirectory(offered.path, moved, offered.program), PACE))
    (offered.path / "draft.txt").write_text("6")
    with pytest.raises(VerificationError, match="expected the nonce of the job's draft, got another"):
        draw_secret(offered.job, client, offered.path)
    (offered.path / "draft.txt").unlink()
    with pytest.raises(VerificationError, match="expected the nonce of the job's draft, got"):
        draw_secret(offered.job, client, offered.path)


def test_offer_and_accept_sign_the_same_job_as_agree(desk: Desk, tmp_path: Path) -> None:
    terms = ["--reward", 2, "--descent-levels", 3, "--nonce", 7]
    desk.agree(tmp_path / "one", *terms)
    desk.offer(tmp_path / "two", *terms)
    said, _ = desk.accept(tmp_path / "two")
    assert "none: the terms leave an honest trainer enough time" in said
    agreement = RunDirectory.open(tmp_path / "two").agreement
    assert agreement == RunDirectory.open(tmp_path / "one").agreement
    assert f"0x{agreement.trainer_signature.hex()}" in said


def test_agree_delivers_an_offer_to_a_client_folder(desk: Desk, tmp_path: Path) -> None:
    party, to = tmp_path / "party", ["--trainer", desk.address]
    assert "expected --client and --trainer" in desk.command("agree", desk.captured, *to, code=1)
    desk.command("client", "init", party)
    assert "start the party: tiebreak ROLE run" in desk.command("show", party, code=1)
    desk.command("agree", desk.captured, "--client", party, *to, "-o", tmp_path / "offer")
    offered = open_offer(tmp_path / "offer")
    assert offered.job.client == load_key(party / "key.pem").address
    assert open_offer(party / "jobs" / offered.job.id.hex()).agreement == offered.agreement
    job = {"status": "active", "heads": 1, "checkpoints": 3}
    found = {"role": "client", "balance": 10**17, "seconds_left": None, "jobs": {"ab" * 32: job}}
    for wrong in ("{", "[]", "[" * 99, '{"jobs": 1}'):
        (party / "status.json").write_text(wrong)
        assert "expected what a party says of itself" in desk.command("show", party, code=2)
    (party / "status.json").write_text(json.dumps(found))
    assert desk.command.tell("show", party) == found
    why = "head 1 did not come within 60 s of acceptance; the trainer lost its stake of 1 ether"
    found["jobs"]["cd" * 32] = {"status": "abandoned", "heads": 0, "checkpoints": 3, "why": why}
    (party / "status.json").write_text(json.dumps(found))
    shown = desk.command("show", party)
    for line in (
        "balance       0.1 ether", "time left     nothing waits for it", "job abababab  active, 1 of 3 heads\n",
        f"job cdcdcdcd  abandoned, 0 of 3 heads: {why}\n",
    ):  # fmt: skip
        assert line in shown


def test_terms_that_could_cost_the_stake_are_not_signed(desk: Desk, tmp_path: Path) -> None:
    offer = tmp_path / "offer"
    desk.offer(offer, "--challenge-window", 1)
    out, err = desk.accept(offer, code=1)
    assert "objections        expected a window of at least" in out
    assert "nothing is signed" in err
    assert not (offer / "job.bin").exists()
    judged = desk.command.tell("agree", offer, "--threads", 1)  # without a key the terms are only judged
    assert judged["step_seconds"] > 0
    assert judged["start_seconds"] > 0
    assert [line.split(" of")[0] for line in judged["objections"]] == ["expected a window"]
    assert (judged["signed"], judged["trainer_stake"]) == (None, "1 ether")
    desk.accept(offer, "--anyway")
    assert RunDirectory.open(offer).job.challenge_window == 1


def test_a_logged_offer_is_accepted_only_with_the_same_thresholds(desk: Desk, tmp_path: Path) -> None:
    file, offer = tmp_path / "policy.json", tmp_path / "offer"
    proven_policy(28).save(file)
    desk.offer(offer, "--policy", file)
    assert not (offer / "policy.json").exists()
    proven_policy(27).save(file)
    desk.accept(offer, "--policy", file, code=1)
    proven_policy(28).save(file)
    desk.accept(offer, "--policy", file)
    assert policy_of(RunDirectory.open(offer)) == proven_policy(28)
