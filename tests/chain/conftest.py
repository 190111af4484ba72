import pytest

from tests.chain.support import new_chain
from tiebreak.protocol.chain import EmbeddedChain


@pytest.fixture(scope="module")
def chain() -> EmbeddedChain:
    """One chain for a module: tests keep apart by jobs with different nonces."""
    return new_chain()
