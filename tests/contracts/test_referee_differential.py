"""Referee.sol against `tiebreak.protocol.game.proof` on random hostile proofs: the same answer, or both refuse.

The contract is the checked-in artifact on an in-process EVM, called as a party calls it. The same questions by the
thousand go to the sources' build in `contracts/test/Differential.t.sol`. `TIEBREAK_FUZZ` (default 1) multiplies the
number of cases.
"""

import os
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.contracts.abi import word
from tests.contracts.disputes import KINDS, REFUSED, Dispute, dispute_of, map_of, random_dispute, tensor
from tests.contracts.encodings import CODES, any_finish, any_instruction, description, edge_finish, finished
from tests.contracts.hostile import changed_often, foreign, forged, misrounded
from tests.contracts.roundings import any_rounding, edge_instruction
from tests.contracts.slotted import SOURCES, slotted
from tests.contracts.solidity_referee import RefusedOnChain, SolidityReferee, deploy
from tests.parts import slow_except
from tiebreak.protocol.program.isa import MAP_SIGNATURES, MapFunction

FUZZ = int(os.environ.get("TIEBREAK_FUZZ", "1"))
Cases = Callable[[], None]


@pytest.fixture(scope="module")
def referee() -> SolidityReferee:
    return deploy()


def agree(referee: SolidityReferee, dispute: Dispute) -> bytes | str:
    """Both verdicts, which must be the same."""
    expected = dispute.off_chain()
    found: bytes | str
    try:
        found = referee.judge(dispute.context, dispute.move)
    except RefusedOnChain:
        found = REFUSED
    assert found == expected, dispute
    return found


@pytest.mark.parametrize("function", MapFunction, ids=lambda f: f.name.lower())
def test_every_function_of_map(referee: SolidityReferee, function: MapFunction, cases: Cases) -> None:
    rng = random.Random(f"map/{function}")
    for types, result in MAP_SIGNATURES[function]:
        count = 2 * FUZZ
        tensors = [tensor(rng, dtype, count) for dtype in types]
        for index in range(count):
            made = map_of(function, result, len(types), count)
            dispute = dispute_of(made, tensors, index, rounding=any_rounding(rng))
            assert agree(referee, dispute) != REFUSED
            cases()


@pytest.mark.parametrize("kind", slow_except(KINDS, "map", "reduce_sum_f32", "gather"))
def test_random_instructions(referee: SolidityReferee, kind: str, cases: Cases) -> None:
    rng = random.Random(f"honest/{kind}")
    refused = 0
    for _ in range(3 * FUZZ):
        honest = random_dispute(rng, kind)
        assert agree(referee, honest) != REFUSED
        for other in (foreign(rng, kind), forged(rng, honest), *changed_often(rng, honest, 4)):
            refused += agree(referee, other) == REFUSED
            cases()
    assert refused > 4 * FUZZ  # most changes are refused; some, as another element, are not


@pytest.mark.parametrize("kind", [*SOURCES, "commit"])
def test_sources_and_commits(referee: SolidityReferee, kind: str, cases: Cases) -> None:
    rng = random.Random(f"slotted/{kind}")
    refused = 0
    for _ in range(4 * FUZZ):
        honest = slotted(rng, kind)
        assert agree(referee, honest) != REFUSED
        for other in changed_often(rng, honest, 4):
            refused += agree(referee, other) == REFUSED
            cases()
    assert refused > 4 * FUZZ


def test_instruction_bytes(referee: SolidityReferee, cases: Cases) -> None:
    """The contract reads exactly the well-formed encodings, and reads the same in them."""
    rng = random.Random("encodings")
    accepted = 0
    for _ in range(100 * FUZZ):
        encoded, root = any_instruction(rng), rng.randbytes(32)
        expected = description(encoded, root)
        try:
            found = referee.describe(encoded, root)
        except RefusedOnChain:
            assert expected is None, encoded.hex()
        else:
            assert b"".join(x if isinstance(x, bytes) else word(x) for x in found) == expected, encoded.hex()
            accepted += 1
        cases()
    assert 20 * FUZZ < accepted < 95 * FUZZ


def test_last_accumulators(referee: SolidityReferee, cases: Cases) -> None:
    rng = random.Random("last")
    refused = 0
    for number in range(120 * FUZZ):
        kind, rounding, encoded = (any_finish, edge_finish)[number % 2](rng)
        found: bytes | None = None
        with suppress(RefusedOnChain):
            canonical, leaf, bits = referee.finish(CODES[kind], rounding, encoded)
            found = word(int(canonical)) + leaf + word(bits)
        assert found == finished(kind, rounding, encoded)
        refused += found is None
        cases()
    assert refused > FUZZ


def test_logged_sums_of_few_terms(referee: SolidityReferee, cases: Cases) -> None:
    """Elements at and next to the ends of what a log decides; roundings that are none are refused."""
    rng = random.Random("logged")
    for _ in range(20 * FUZZ):
        rounding = any_rounding(rng)
        dispute = dispute_of(*edge_instruction(rng, rounding), 0, rounding=rounding)
        assert agree(referee, dispute) != REFUSED
        assert agree(referee, misrounded(rng, dispute)) == REFUSED
        cases()
