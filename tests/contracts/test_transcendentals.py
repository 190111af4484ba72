"""`Transcendentals.sol` against the integer reference, where Python is better placed than Foundry.

The bulk of the comparison is in contracts/test/Transcendentals.t.sol, which runs 36,000 cases of
tests/vectors/transcendentals.json. Here: the artifact as checked in, the constants, the limits.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from web3 import EthereumTesterProvider, Web3

from tests.hardest.search import RANGES
from tests.vectors.transcendentals import CASES, anchors, argument
from tiebreak.protocol.chain.artifacts import load_artifact
from tiebreak.protocol.chain.node import node_errors
from tiebreak.protocol.numbers.transcendental import _ln2, _two_over_root_pi, pi
from tiebreak.protocol.program.isa import MapFunction
from tiebreak.protocol.program.reference import TRANSCENDENTAL_FUNCTIONS as FUNCTIONS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "contracts" / "src"
LIBRARIES = SOURCES / "libraries" / "transcendental"


@cache
def contract() -> Any:
    artifact = load_artifact("Transcendentals")
    web3 = Web3(EthereumTesterProvider())
    factory = web3.eth.contract(abi=list(artifact.abi), bytecode=artifact.bytecode)
    receipt = web3.eth.wait_for_transaction_receipt(factory.constructor().transact())
    return web3.eth.contract(address=receipt["contractAddress"], abi=list(artifact.abi))


def evaluate(function: int, bits: int, precision: int) -> int:
    with node_errors():
        return int(contract().functions.evaluate(function, bits, precision).call())


def literal(file: Path, name: str) -> int:
    found = re.search(rf"constant {name} =\s*(0x[0-9a-f]+|\d+);", file.read_text("utf-8"))
    assert found, f"no constant {name} in {file.name}"
    return int(found[1], 0)


def test_solidity_constants_match_the_reference() -> None:
    exponential, sine = LIBRARIES / "Exponential.sol", LIBRARIES / "Sine.sol"
    assert literal(exponential, "LN2") == _ln2(400) >> 280
    assert literal(LIBRARIES / "Logarithm.sol", "LN2_200") == _ln2(400) >> 200
    assert literal(LIBRARIES / "ErrorFunction.sol", "TWO_OVER_ROOT_PI") == _two_over_root_pi(400) >> 280
    assert literal(LIBRARIES / "ErrorFunction.sol", "ONE") == 1 << 120
    assert literal(sine, "HALF_PI") == pi(400) >> 281
    assert literal(sine, "TWO_OVER_PI") == (1 << 857) // pi(600)


def test_search_ranges_cover_all_arguments_the_contract_evaluates() -> None:
    """The ranges of the exhaustive search end where the contract answers without evaluating."""
    limit = {
        name: literal(SOURCES / "Transcendentals.sol", name)
        for name in ("TWO_TO_MINUS_26", "TWO_TO_MINUS_13", "TWO_TO_MINUS_12", "ONE", "FOUR", "TEN", "EIGHTY_NINE")
    }
    hundred_and_four = literal(SOURCES / "Transcendentals.sol", "HUNDRED_AND_FOUR")
    sign, largest = 1 << 31, 0x7F7FFFFF
    assert {
        MapFunction.EXP: (
            (limit["TWO_TO_MINUS_26"], limit["EIGHTY_NINE"] - 1),
            (sign | limit["TWO_TO_MINUS_26"], (sign | hundred_and_four) - 1),
        ),
        MapFunction.LOG: ((1, limit["ONE"] - 1), (limit["ONE"] + 1, largest)),
        MapFunction.TANH: ((limit["TWO_TO_MINUS_13"], limit["TEN"] - 1),),
        MapFunction.ERF: ((1, limit["FOUR"] - 1),),
        MapFunction.SIN: ((limit["TWO_TO_MINUS_13"], largest),),
        MapFunction.COS: ((limit["TWO_TO_MINUS_12"], largest),),
    } == RANGES


def test_contract_functions_are_correct_at_each_range_end(cases: Callable[[], None]) -> None:
    """Both sides of every limit, where a bound may be wrong by one."""
    for function, ranges in RANGES.items():
        for end in {end + step for ends in ranges for end in ends for step in (-1, 0, 1)}:
            for precision in (16, 24, 32):
                assert evaluate(function, end, precision) == FUNCTIONS[function](end, precision), f"{end:#x}"
                cases()


def test_bulk_vectors_have_many_distinct_results(cases: Callable[[int], None]) -> None:
    """That the file is what the generator makes is in tests/protocol/test_c_recheck_agrees_with_all_test_vectors.py."""
    for function in FUNCTIONS:
        near = anchors(function)
        assert len({FUNCTIONS[function](*argument(function, case, near)) for case in range(CASES)}) > CASES // 3
        cases(CASES)
