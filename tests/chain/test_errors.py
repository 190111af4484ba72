"""Errors of the chain adapter cross processes and simulated time, which copy them by their arguments."""

import copy

import pytest

from tiebreak.protocol.chain import ChainError, ContractMismatch, InsufficientFunds, Reverted

ERRORS: list[ChainError] = [
    Reverted("WindowClosed", {"end": 7, "current": 8, "root": b"\1\2"}),
    InsufficientFunds(b"\3" * 20, 8, 7),
    ContractMismatch("Board", b"\4" * 20, "another contract"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_copied_chain_errors_keep_message_and_fields(error: ChainError) -> None:
    copies = (type(error)(*error.args), copy.copy(error))
    assert [str(other) for other in copies] == [str(error)] * 2
    assert [vars(other) for other in copies] == [vars(error)] * 2
    assert str(error).startswith(
        ("the contract refused: WindowClosed(end=7, ", "account 0x0303", "expected the contra")
    )
