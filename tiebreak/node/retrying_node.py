"""Repeats requests at once that a node did not answer, as long as that costs a look at the chain little time."""

import time
from collections.abc import Callable
from typing import Any, Final

from tiebreak.protocol.chain import NodeError

AGAIN: Final = 24
"""The number of repeated requests within one look, over all requests."""
SECONDS: Final = 5.0
"""The time after which a look repeats no request: a node that is silent, not only shaky, holds up its party."""


class RetryingNode:
    """A node in front of another. Without it, each answer that fails costs a look, and a look may cost a block."""

    def __init__(self, node: Any, steady: Callable[[], float] = time.monotonic) -> None:
        self._node, self._steady = node, steady
        self._left, self._end = 0, 0.0

    def begin(self) -> None:
        """Begin a look: there may be questions that are asked again."""
        self._left, self._end = AGAIN, self._steady() + SECONDS

    def may_ask_again(self) -> bool:
        """Whether one more question may be asked again, which then counts as asked."""
        self._left -= 1
        return self._left >= 0 and self._steady() < self._end

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._node, name)
        if not callable(found):
            return found

        def asked(*given: Any) -> Any:
            while True:
                try:
                    return found(*given)
                except NodeError:
                    if not self.may_ask_again():
                        raise

        return asked
