"""Repeats failed requests to a node at once, up to a number and a time per poll of the chain."""

import time
from collections.abc import Callable
from typing import Any, Final

from tiebreak.protocol.chain import NodeError

AGAIN: Final = 24
"""The number of repeated requests within one poll, over all requests."""
SECONDS: Final = 5.0
"""The time after which a poll repeats no request, since a node that does not answer at all holds up its party."""


class RetryingNode:
    """Passes requests to a node, and repeats those that fail, so that one lost answer does not lose a poll.

    steady: a clock in seconds that never goes back.
    """

    def __init__(self, node: Any, steady: Callable[[], float] = time.monotonic) -> None:
        self._node, self._steady = node, steady
        self._left, self._end = 0, 0.0

    def begin(self) -> None:
        """Begin a poll: from now on, requests may be repeated."""
        self._left, self._end = AGAIN, self._steady() + SECONDS

    def may_ask_again(self) -> bool:
        """Whether one more request may be repeated in this poll. It counts as repeated if so."""
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
