"""Which checkpoints stay on disk: every one, every m-th, or only the last.

The initial state and the newest checkpoint always stay, so a run always resumes. What was dropped is computed again, by
whoever needs it, from the last one before it that was kept.
"""

import re
from dataclasses import dataclass

from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Keep:
    """Every so many checkpoints; 0: only the last."""

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigurationError(f"expected to keep every m-th checkpoint, m at least 1, got {self.every}")

    @classmethod
    def parse(cls, text: str) -> "Keep":
        """`all`, `every:M` or `last`. Raises `ConfigurationError`."""
        found = re.fullmatch(r"all|last|every:([1-9][0-9]{0,17})", text)
        if found is None:
            raise ConfigurationError(f"expected all, every:M or last, got {text!r}")
        return cls(int(found[1]) if found[1] else int(text == "all"))

    def __str__(self) -> str:
        return {0: "last", 1: "all"}.get(self.every, f"every:{self.every}")

    def keeps(self, checkpoint: int) -> bool:
        """Whether a checkpoint (from 0) stays when there is a newer one."""
        return self.every > 0 and (checkpoint + 1) % self.every == 0

    def prune(self, run: RunDirectory, newest: int) -> None:
        """Drops what is not to stay of the states before step `newest`, which must be whole."""
        if self.every == 1:
            return
        for step in run.kept():
            if 0 < step < newest and not self.keeps(run.job.checkpoint_of(step)):
                run.drop_state(step)


ALL = Keep(1)
LAST = Keep(0)
