from collections.abc import Iterator

import pytest

from tests.chain.support import new_chain
from tests.waiting import free_port
from tiebreak.protocol.chain import EmbeddedChain
from tiebreak.protocol.chain.devnet import MNEMONIC, RunningNode, find_anvil, run_anvil


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    """One chain for a module: tests keep apart by jobs with different nonces."""
    return new_chain()


@pytest.fixture(scope="session")
def anvil() -> Iterator[RunningNode]:
    """One node for all: modules keep apart by boards of their own."""
    binary = find_anvil()
    if binary is None:
        pytest.skip("needs anvil")
    with run_anvil(binary, port=free_port(), mnemonic=MNEMONIC, accounts=3) as node:
        yield node
