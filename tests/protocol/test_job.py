"""Jobs, heads and their files."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.programs import every_kind
from tests.protocol.runs import CHALLENGER, CLIENT, DOMAIN, TRAINER, make_job
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import FINITE_LOSSES, Head, Job, SignedHead, SignedJob, game_id
from tiebreak.protocol.commitments.records import StepRecord, initial_record
from tiebreak.protocol.errors import EncodingError, ForbiddenLoss, SignatureError, VerificationError
from tiebreak.protocol.program.program import Program
from tiebreak.protocol.tags import Tag, tagged_hash

JOB = make_job()


def signed(job: Job = JOB, domain: Domain = DOMAIN) -> SignedJob:
    digest = job.digest(domain)
    return SignedJob(
        domain=domain, job=job, client_signature=CLIENT.sign(digest), trainer_signature=TRAINER.sign(digest)
    )


def head(count: int = 2, root: bytes = b"\1" * 32) -> Head:
    return Head(job_id=JOB.id, count=count, run_root=root)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no steps": ({"steps": 0}, "steps: expected a number between 1"),
    "too many steps": ({"steps": 1 << 64}, "steps: expected an unsigned 64-bit integer"),
    "no interval": ({"checkpoint_interval": 0}, "checkpoint_interval: expected a number between 1"),
    "long interval": ({"checkpoint_interval": 6}, "at most 5 steps, got 6"),
    "no body": ({"body_count": 0}, "body_count: expected a number between 1"),
    "large body": ({"body_count": (1 << 20) + 1}, "body_count: expected a number between 1 and 1048576"),
    "no state": ({"state_count": 0}, "state_count: expected a number between 1"),
    "much data": ({"data_count": (1 << 20) + 1}, "data_count: expected a number between 0"),
    "policy": ({"policy": 2}, "policy: expected a number between 0 and 1, got 2"),
    "tolerances of an exact job": ({"tolerances": 40}, "tolerances 0 under policy exact, got 0x28"),
    "tolerance 1": ({"policy": 1, "tolerances": 1 << 16}, "expected 0 or 2 to 64 for SCATTER sums, got 1"),
    "tolerance 65": ({"policy": 1, "tolerances": 65 << 8}, "expected 0 or 2 to 64 for PRODUCTS sums, got 65"),
    "a fourth tolerance": ({"policy": 1, "tolerances": 2 << 24}, "expected a number below 2\\^24, got 0x2000000"),
    "finite losses of an exact job": ({"tolerances": FINITE_LOSSES}, "expected policy logged if finite losses are"),
    "low precision": ({"precision": 15}, "precision: expected a number between 16 and 32, got 15"),
    "high precision": ({"precision": 33}, "precision: expected a number between 16 and 32, got 33"),
    "no descent": ({"descent_levels": 0}, "descent_levels: expected a number between 1 and 5, got 0"),
    "deep descent": ({"descent_levels": 6}, "descent_levels: expected a number between 1 and 5, got 6"),
    "no clock": ({"clock": 0}, "clock: expected a number between 1"),
    "long clock": ({"clock": (1 << 25) + 1}, "clock: expected a number between 1 and 33554432"),
    "no window": ({"challenge_window": 0}, "challenge_window: expected a number between 1"),
    "long window": ({"challenge_window": (1 << 28) + 1}, "challenge_window: expected a number between 1 and 268435456"),
    "long replay": ({"replay_time": (1 << 25) + 1}, "replay_time: expected a number between 0 and 33554432"),
    "long talk": ({"talk_time": (1 << 25) + 1}, "talk_time: expected a number between 0 and 33554432"),
    "a game of a year and more": (
        {"talk_time": (1 << 22) + 65, "clock": 1 << 22, "replay_time": (1 << 24) // 96},
        "a game of at most 33554432 seconds, got 33554433",
    ),
    "long audit": ({"audit_time": (1 << 28) + 1}, "audit_time: expected a number between 0 and 268435456"),
    "a long audit of all segments": (
        {"steps": 10, "audit_time": (1 << 28) // 5 + 1},
        "an audit of all segments of at most 268435456 seconds, got 268435460",
    ),
    "no deadline": ({"deadline": 0}, "deadline: expected a number between 1"),
    "late deadline": ({"deadline": (1 << 28) + 1}, "deadline: expected a number between 1 and 268435456"),
    "many seats": ({"seats": 17, "seat_bond": 1}, "seats: expected a number between 0 and 16, got 17"),
    "seats of a logged job": ({"policy": 1, "seats": 1, "seat_bond": 1}, "no seats under policy logged, got 1"),
    "a fee without seats": ({"seat_fee": 1}, "a seat fee of 0 without seats, got 1"),
    "a bond without seats": ({"seat_bond": 1}, "a seat bond of 0 without seats, got 1"),
    "seats without a bond": ({"seats": 16, "seat_fee": 1}, "a seat bond of at least 1 with seats, got 0"),
    "a bond without a pool": ({"seats": 16, "seat_bond": 3}, r"a power of two, such as 4 wei .*, got 3"),
    "a large fee": ({"seats": 1, "seat_fee": 1 << 128, "seat_bond": 1}, "seat_fee: expected a number between 0"),
    "a cap that is cheap to fill": (
        {"reward": 5, "trainer_stake": 7, "seats": 4, "seat_fee": 1, "seat_bond": 1 << 12, "challenger_stake": 1},
        "a challenger's stake of at least 2 wei, got 1: for less a trainer could fill the job with 16 games",
    ),
    "a challenge for nothing": ({"challenger_stake": 0}, "challenger_stake: expected a number between 1"),
    "large reward": ({"reward": 1 << 128}, "reward: expected a number between 0"),
    "negative": ({"nonce": -1}, "nonce: expected an unsigned"),
    "large nonce": ({"nonce": 1 << 256}, "nonce: expected an unsigned 256-bit"),
    "no client": ({"client": bytes(20)}, "expected a client address, got zero"),
    "no trainer": ({"trainer": bytes(20)}, "expected a trainer address, got zero"),
    "short address": ({"trainer": b"\1" * 19}, "trainer: expected 20 bytes"),
    "short root": ({"program_root": bytes(31)}, "program_root: expected 32 bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_job_out_of_range_cannot_be_made(what: str) -> None:
    changes, message = REFUSED[what]
    with pytest.raises(VerificationError, match=message):
        replace(JOB, **changes)


@given(st.integers(1, 500), st.integers(1, 500))
def test_segments_partition_the_steps(steps: int, interval: int) -> None:
    job = make_job(steps=steps, interval=min(interval, steps))
    assert sum(job.segment_steps(c) for c in range(job.checkpoints)) == steps
    assert job.last_step(job.checkpoints - 1) == steps
    assert 1 << job.run_depth >= job.checkpoints
    for checkpoint in range(job.checkpoints):
        first, last = job.first_step(checkpoint), job.last_step(checkpoint)
        assert 1 <= job.segment_steps(checkpoint) <= job.checkpoint_interval
        assert job.checkpoint_of(first) == job.checkpoint_of(last) == checkpoint
        assert checkpoint == 0 or job.last_step(checkpoint - 1) == first - 1
    for outside in (0, steps + 1):
        with pytest.raises(ValueError, match="expected a step between"):
            job.checkpoint_of(outside)


LOSSES = {
    0: True, 1: True, 0x80000000: True, 0x3F800000: True, 0x7F7FFFFF: True, 0xFF7FFFFF: True,  # the greatest
    0x7F800000: False, 0xFF800000: False, 0x7FC00000: False, 0x7F800001: False, 0xFFFFFFFF: False, 0x7FFFFFFF: False,
}  # fmt: skip
"""Bits of losses, and whether they are finite."""


@pytest.mark.parametrize(("bits", "is_finite"), LOSSES.items(), ids=[f"{bits:#010x}" for bits in LOSSES])
def test_only_a_job_that_demands_finite_losses_forbids_others(bits: int, is_finite: bool) -> None:
    record = StepRecord(step=3, state_root=JOB.initial_state_root, loss_bits=bits)
    logged = replace(JOB, policy=1, tolerances=0x281E0B)
    job = replace(logged, tolerances=logged.tolerances | FINITE_LOSSES)
    assert (logged.demands_finite_losses, job.demands_finite_losses) == (False, True)
    assert job.sum_tolerances == logged.sum_tolerances == logged.tolerances
    assert job.id != logged.id
    logged.check_loss(record)
    if is_finite:
        job.check_loss(record)
    else:
        with pytest.raises(ForbiddenLoss, match=rf"step 3: expected a finite loss, .* got .*{bits:#010x}"):
            job.check_loss(record)


def test_job_id_covers_policy_tolerances_and_seats() -> None:
    logged = replace(JOB, policy=1, tolerances=0x281E0B)
    assert len({JOB.id, logged.id, replace(JOB, policy=1).id, replace(JOB, seats=16, seat_bond=1).id}) == 4
    assert (logged.is_logged, JOB.is_logged) == (True, False)
    assert JOB.initial_record == initial_record(JOB.initial_state_root)


def test_job_refuses_another_program() -> None:
    program = every_kind()
    JOB.check_program(program)
    shorter = Program(program.body[:-1], program.commits)
    with pytest.raises(VerificationError, match="program root: expected"):
        JOB.check_program(shorter)
    with pytest.raises(VerificationError, match="program body: expected 35 as in the job, got 34"):
        replace(JOB, body_count=35).check_program(program)
    with pytest.raises(VerificationError, match="program data: expected 0 as in the job, got 2"):
        replace(JOB, data_count=0).check_program(program)


def test_signed_job_needs_valid_signatures_of_both_parties() -> None:
    good = signed()
    good.verify()
    digest = JOB.digest(DOMAIN)
    with pytest.raises(SignatureError, match=CLIENT.address.hex()):
        replace(good, client_signature=TRAINER.sign(digest)).verify()
    with pytest.raises(SignatureError, match=TRAINER.address.hex()):
        replace(good, trainer_signature=CLIENT.sign(digest)).verify()
    with pytest.raises(SignatureError):
        replace(good, job=replace(JOB, reward=11)).verify()
    with pytest.raises(SignatureError):
        replace(good, domain=Domain(chain_id=1, contract=DOMAIN.contract)).verify()


@given(st.integers(16, 32), st.lists(st.sampled_from([0, *range(2, 65)]), min_size=3, max_size=3))
def test_job_file_round_trips(precision: int, tolerances: list[int]) -> None:
    packed = int.from_bytes(bytes(tolerances), "little")
    logged = replace(JOB, policy=1, precision=precision, tolerances=packed)
    for job in (logged, replace(JOB, nonce=(1 << 256) - 1, reward=1 << 100, challenger_stake=1 << 87)):
        file = signed(job).encode()
        back = SignedJob.decode(file)
        back.verify()
        assert (back.job, back.encode()) == (job, file)


JOB_FILE = signed().encode()
HEAD_FILE = SignedHead.sign(head(), DOMAIN, TRAINER).encode()


@pytest.mark.parametrize("decode", [SignedJob.decode, SignedHead.decode])
def test_malformed_job_and_head_files_are_refused(decode: Any) -> None:
    for file in (JOB_FILE[:-1], JOB_FILE + b"\0", HEAD_FILE[:-1], HEAD_FILE + b"\0", b"", b"\xc0", bytes(5000)):
        with pytest.raises(EncodingError):
            decode(file)
    value = msgpack.unpackb(JOB_FILE if decode == SignedJob.decode else HEAD_FILE)
    for more in ([], [0]):  # a later version may have more fields
        with pytest.raises(EncodingError, match="file: expected version 1, got 2; a later version of"):
            decode(msgpack.packb([2, *value[1:], *more]))
    with pytest.raises(EncodingError, match="expected an array of"):
        decode(msgpack.packb([*value, 0]))


def test_head_must_be_of_the_job_and_signed_by_its_trainer() -> None:
    good = SignedHead.sign(head(), DOMAIN, TRAINER)
    good.verify(JOB, DOMAIN)
    assert SignedHead.decode(good.encode()) == good
    with pytest.raises(SignatureError):
        SignedHead.sign(head(), DOMAIN, CLIENT).verify(JOB, DOMAIN)
    with pytest.raises(VerificationError, match="expected job"):
        good.verify(replace(JOB, nonce=1), DOMAIN)
    with pytest.raises(VerificationError, match="at most 3 checkpoints, got 4"):
        SignedHead.sign(head(4), DOMAIN, TRAINER).verify(JOB, DOMAIN)
    with pytest.raises(VerificationError, match=r"Head.count: expected a number between 1 and .*, got 0"):
        SignedHead.decode(msgpack.packb([1, JOB.id, 0, bytes(32), bytes(65)]))


def test_game_id_hashes_job_head_challenger_and_nonce() -> None:
    challenger = CHALLENGER.address
    expected = tagged_hash(Tag.GAME, JOB.id, head().digest(DOMAIN), challenger, (5).to_bytes(8, "big"))
    assert game_id(head(), DOMAIN, challenger, 5) == expected
    with pytest.raises(EncodingError, match="nonce"):
        game_id(head(), DOMAIN, challenger, 1 << 64)
