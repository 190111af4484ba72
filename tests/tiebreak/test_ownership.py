"""`tiebreak ownership`: what is opened and checked, and each forgery with its check."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.engine import frozen_cases
from tests.tiebreak.parties import Commands, Parties, flip
from tiebreak.api.certification import claims, ownership
from tiebreak.api.disputing.judging import read_transcripts
from tiebreak.api.signing.keys import new_key
from tiebreak.cli.key import load_key
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.dsse import Envelope, Payload
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError, VerificationError
from tiebreak.protocol.packing import pack
from tiebreak.protocol.parties import posts
from tiebreak.protocol.tags import Digest


class Desk:
    """An owner and a checker, and the files between them."""

    def __init__(self, parties: Parties, folder: Path, command: Commands, run: Path) -> None:
        self.parties, self.folder, self.run, self.command = parties, folder, run, command
        self.tell = command.tell
        self.proof, self.challenge = folder / "proof", folder / "challenge.json"

    def prove(self, *more: object, code: int = 0) -> Any:
        return self.tell("ownership", "prove", self.run, "-o", self.proof, *more, code=code)

    def check(self, *more: object, code: int = 0) -> Any:
        return self.tell(
            "ownership", "check", self.proof, "--challenge", self.challenge, "--threads", 1, *more, code=code
        )

    def answered(self, who: str = "trainer", *challenge: object) -> "Desk":
        self.prove()
        self.check(*challenge)
        self.prove("--challenge", self.challenge, "--key", self.parties.path(f"{who}.pem"))
        return self

    def asked(self) -> claims.OwnershipChallenge:
        return claims.OwnershipChallenge.read(self.challenge)


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    return Desk(parties, tmp_path, command, parties.trained(tmp_path / "run"))


@pytest.mark.parametrize("who", ["trainer", "client"])
def test_the_owner_opens_the_drawn_states_and_no_others(desk: Desk, who: str) -> None:
    assert desk.prove()["segments"] == 3
    assert not list((desk.proof / "checkpoints").iterdir())
    assert not (desk.proof / "data.safetensors").exists()
    made = desk.check("--top", 0, "--uniform", 0)
    assert (made["drawn"], made["unseen"]) == ([0, 2], [{"false": 1, "probability": 1.0}])
    assert desk.prove("--challenge", desk.challenge)["opened_states"] == [0, 6]
    assert not (desk.proof / "answer.json").exists(), "without a key it only looks"
    assert desk.check(code=2).count("answer.json")
    desk.prove("--challenge", desk.challenge, "--key", desk.parties.path(f"{who}.pem"))
    assert sorted(file.name for file in (desk.proof / "checkpoints").iterdir()) == [
        "000000000000.safetensors", "000000000006.safetensors"]  # fmt: skip
    found = desk.check("--permute", 3)
    assert (found["holds"], found["role"], found["replayed_steps"]) == (True, who, 4)
    assert found["owner"] == f"0x{load_key(desk.parties.path(f'{who}.pem')).address.hex()}"
    assert found["posted"] == "no witness of any time was asked"
    assert found["weights"] is None
    assert not found["moved_from_first_state"].startswith("0%")


def test_disputed_weights_must_belong_to_the_proven_run(desk: Desk, parties: Parties, tmp_path: Path) -> None:
    weights, certificate = tmp_path / "w.safetensors", tmp_path / "certificate.json"
    desk.tell("weights", desk.run, "--unsettled", "-o", weights)
    desk.tell("certify", desk.run, "--weights", weights, "--key", parties.path("trainer.pem"), "-o", certificate)
    desk.answered()
    link = ["--model", weights, "--certificate", certificate]
    assert desk.check(*link)["weights"] == "the disputed ones are the run's"
    assert "expected the disputed weights and their certificate" in desk.check("--model", weights, code=1)
    flip(weights)
    assert "expected tensors under state root" in desk.check(*link, code=2)
    flip(weights)
    other = Desk(parties, tmp_path / "other", desk.command, parties.cheating(tmp_path / "cheat", 2))
    (tmp_path / "other").mkdir()
    other.answered()
    assert "these weights are of another run" in other.check(*link, code=2)


def test_revealed_states_include_frozen_entries(parties: Parties, tmp_path: Path, command: Commands) -> None:
    """In the run only the initial state does, which is not opened unless it is drawn."""
    client, trainer = (load_key(parties.path(f"{who}.pem")) for who in ("client", "trainer"))
    run = frozen_cases.new_run(tmp_path / "run", client, trainer)
    frozen_cases.work(run, key=trainer)
    found = Desk(parties, tmp_path, command, run.path).answered("trainer", "--top", 2).check()
    assert (found["holds"], found["role"]) == (True, "trainer")
    shown = max((tmp_path / "proof" / "checkpoints").iterdir())
    assert load_file(shown).keys() == run.program.state_spec().keys()
    assert load_file(run.path / "checkpoints" / shown.name).keys() == load_file(shown).keys() - run.program.frozen


def test_a_false_segment_fails_the_ownership_check(desk: Desk, parties: Parties, tmp_path: Path) -> None:
    desk.run = parties.cheating(tmp_path / "cheat", 2)
    assert "segment 0, steps 1 to 3: expected record" in desk.answered().check(code=2)


THIRD, SIXTH = (f"checkpoints/{step:012d}.safetensors" for step in (3, 6))


def of_another_run(desk: Desk) -> None:
    shutil.copyfile(desk.parties.cheating(desk.folder / "cheat", 2) / THIRD, desk.proof / THIRD)


def answered_by(signed: Callable[[Envelope, PrivateKey], Envelope]) -> Callable[[Desk], None]:
    """Other signatures than the owner's under its answer."""

    def forge(desk: Desk) -> None:
        answer = desk.proof / "answer.json"
        bare = replace(Envelope.decode(answer.read_bytes()), signatures=())
        answer.write_bytes(signed(bare, load_key(desk.parties.path("stranger.pem"))).encode())

    return forge


def under_a_borrowed_name(desk: Desk) -> None:
    key, trainer = load_key(desk.parties.path("stranger.pem")), load_key(desk.parties.path("trainer.pem"))
    payload = Payload(kind=claims.PAYLOAD_TYPE, data=desk.asked().encode())
    envelope = Envelope(payload=payload).signed(f"0x{trainer.address.hex()}", key.sign(payload.digest))
    (desk.proof / "answer.json").write_bytes(envelope.encode())


def linked(desk: Desk) -> None:
    (desk.proof / THIRD).unlink()
    (desk.proof / THIRD).symlink_to(desk.run / THIRD)


def first(folder: Path) -> Path:
    return next(folder.iterdir())


def with_changes(data: bytes) -> Callable[[Desk], object]:
    return lambda desk: (desk.proof / "changes.bin").write_bytes(data)


FORGERIES: dict[str, tuple[Callable[[Desk], object], str]] = {
    "swapped": (
        lambda desk: shutil.copyfile(desk.proof / THIRD, desk.proof / SIXTH),
        "000000000006.safetensors: state after step 6",
    ),
    "of another run": (of_another_run, "000000000003.safetensors: state after step 3"),
    "stripped": (answered_by(lambda bare, _: bare), "expected a signature by trainer"),
    "by a stranger": (answered_by(sign), "expected a signature by trainer"),
    "under a borrowed name": (under_a_borrowed_name, "expected a signature by trainer"),
    "of an older challenge": (
        lambda desk: desk.challenge.write_bytes(replace(desk.asked(), nonce=bytes(32)).encode()),
        "expected an answer to the challenge of this check",
    ),
    "other changes": (lambda desk: flip(desk.proof / "changes.bin"), "expected the claim of changes"),
    "other records": (lambda desk: flip(desk.proof / "records.bin"), "records with the signed root"),
    "unsigned head": (lambda desk: flip(first(desk.proof / "heads")), "heads/000000000003.bin"),
    "no head": (lambda desk: first(desk.proof / "heads").unlink(), "expected at least one signed head"),
    "other data": (lambda desk: flip(desk.proof / "data.safetensors"), "data.safetensors"),
    "withheld": (lambda desk: (desk.proof / THIRD).unlink(), "expected the opened state after step 3, got none"),
    "linked": (linked, "a symbolic link"),
    "not finite": (with_changes(b"\0\0\x80\x7f" * 3), "expected finite changes"),
    "too few changes": (with_changes(bytes(8)), "changes.bin: expected 12 bytes, got 8"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_ownership_proofs_are_refused(desk: Desk, name: str) -> None:
    forge, said = FORGERIES[name]
    desk.answered()
    forge(desk)
    assert said in desk.check(code=2)


def test_a_false_claim_of_changes_is_seen_in_a_drawn_segment(desk: Desk) -> None:
    desk.prove()
    (desk.proof / "changes.bin").write_bytes(bytes(12))
    desk.check()
    desk.prove("--challenge", desk.challenge, "--key", desk.parties.path("trainer.pem"))
    assert "segment 0: expected a largest change of" in desk.check(code=2)


def test_invalid_ownership_requests_are_refused(desk: Desk, parties: Parties, tmp_path: Path) -> None:
    desk.prove()
    assert "expected a new or empty folder" in desk.prove(code=1)
    desk.check()
    stranger = parties.path("stranger.pem")
    assert "expected the key of trainer" in desk.prove("--challenge", desk.challenge, "--key", stranger, code=1)
    made = claims.OwnershipClaim.read(desk.proof)
    with pytest.raises(ConfigurationError, match="already exists"):
        claims.make_challenge(made, desk.challenge, 1, 1)
    opened = RunDirectory.open(desk.run)
    opened.drop_state(3)
    with pytest.raises(StateError, match="got none after step 3"):
        ownership.claim(opened, tmp_path / "another")
    for name, value in (("job", "00" * 32), ("count", 4), ("runRoot", "00" * 32)):
        asked = {**json.loads(desk.asked().encode()), name: value}
        (tmp_path / "asked.json").write_text(json.dumps(asked, separators=(",", ":")))
        with pytest.raises(VerificationError, match="which was challenged"):
            made.drawn(claims.OwnershipChallenge.read(tmp_path / "asked.json"))
    for text in ("{}", "[" * 100, json.dumps(json.loads(desk.asked().encode()))):
        (tmp_path / "asked.json").write_text(text)
        with pytest.raises(EncodingError, match="asked"):
            claims.OwnershipChallenge.read(tmp_path / "asked.json")


def test_a_hub_says_when_heads_were_posted(desk: Desk, parties: Parties, tmp_path: Path) -> None:
    desk.answered()
    opened, trainer, hub = RunDirectory.open(desk.run), load_key(parties.path("trainer.pem")), new_key()

    def transcript(heads: list[SignedHead]) -> Path:
        rows = []
        for number, head in enumerate(heads):
            post = posts.Post.of(posts.HeadBody(head=head), job_id=opened.job.id, number=number, sender=trainer.address)
            received = posts.Received(content=post.content, place=number + 1, at=1_700_000_000 + number)
            wire = posts.SignedPost.sign(post, OFF_CHAIN, trainer).encode()
            signature = hub.sign(received.digest(OFF_CHAIN))
            rows.append(posts.ReceivedPost(place=received.place, at=received.at, wire=wire, signature=signature).pack())
        (tmp_path / "posts").write_bytes(pack(rows))
        return tmp_path / "posts"

    witness = ["--posts", transcript(opened.heads()), "--hub-key", hub.address.hex()]
    assert desk.check(*witness)["posted"] == [
        f"head {count}: 2023-11-14T22:13:2{count - 1}+00:00 (hub 0x{hub.address.hex()}, place {count})"
        for count in (1, 2, 3)
    ]
    assert "--hub-key of their hub, or neither" in desk.check(*witness[:2], code=1)
    assert "expected" in desk.check(*witness[:3], trainer.address.hex(), code=2)
    two = Head(job_id=opened.job.id, count=2, run_root=Digest(bytes(32)))
    transcript([SignedHead.sign(two, OFF_CHAIN, trainer)])
    assert "the trainer has signed for two runs" in desk.check(*witness, code=2)
    assert len(read_transcripts([tmp_path / "posts"])[0]) == 1


def challenge(count: int, top: int, uniform: int, nonce: int = 0) -> claims.OwnershipChallenge:
    blank = Digest(bytes(32))
    return claims.OwnershipChallenge(
        job=blank, run_root=blank, count=count, changes=blank, top=top, uniform=uniform, nonce=nonce.to_bytes(32, "big")
    )


def test_draws_include_both_ends_the_largest_changes_and_uniform_segments(cases: Callable[[], None]) -> None:
    changes = [0.0, 3.0, 1.0, 9.0, 2.0, 9.0, 0.5, 8.0]
    counted = [0] * len(changes)
    for nonce in range(400):
        drawn = challenge(8, 2, 2, nonce).draw(changes)
        assert set(drawn) > {0, 7, 3, 5}
        assert len(drawn) == 6
        for place in drawn:
            counted[place] += 1
        cases()
    assert all(150 < counted[place] < 250 for place in (1, 2, 4, 6)), "two of four, each equally likely"
    assert challenge(8, 0, 0).draw(changes) == (0, 7)
    assert challenge(1, 5, 5).draw([1.0]) == (0,)
    assert challenge(8, 9, 9).draw(changes) == tuple(range(8))


def test_the_unseen_probability_matches_counting_all_draws(cases: Callable[[], None]) -> None:
    for count in range(1, 9):
        for top in range(4):
            for uniform in range(5):
                rest = max(0, count - min(count, 2) - top)
                draws = list(combinations(range(rest), min(uniform, rest)))
                for false in range(1, count + 1):
                    lucky = sum(1 for draw in draws if not set(draw) & set(range(false)))
                    expected = Fraction(lucky, len(draws)) if false <= rest else Fraction(0)
                    assert claims.unseen(count, top, uniform, false) == pytest.approx(float(expected), abs=1e-12)
                    cases()
    exact = Fraction(comb(996 - 10, 40), comb(996, 40))
    assert claims.unseen(1000, 2, 40, 10) == pytest.approx(float(exact), rel=1e-12)
