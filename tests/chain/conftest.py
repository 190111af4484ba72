import pytest

from protocol.chain import EmbeddedChain
from tests.chain.support import new_chain


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    """One chain for a module: tests keep apart by jobs with different nonces."""
    return new_chain()
