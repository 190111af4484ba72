"""The checkpoints that stay on disk: every one, every m-th, or only the last.

The initial state and the newest checkpoint stay, so a run can resume. A dropped one is computed again when needed.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiebreak.protocol.errors import ConfigurationError

if TYPE_CHECKING:  # importing it takes torch
    from tiebreak.engine.run.directory import RunDirectory


@dataclass(frozen=True, slots=True)
class Keep:
    """Keeps one checkpoint in every `every`; 0 keeps only the last."""

    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigurationError(f"expected to keep every m-th checkpoint, m at least 1, got {self.every}")

    @classmethod
    def parse(cls, text: str) -> "Keep":
        """Parses `all`, `every:M` or `last`. Raises `ConfigurationError`."""
        found = re.fullmatch(r"all|last|every:([1-9][0-9]{0,17})", text)
        if found is None:
            raise ConfigurationError(f"expected all, every:M or last, got {text!r}")
        return cls(int(found[1]) if found[1] else int(text == "all"))

    def __str__(self) -> str:
        return {0: "last", 1: "all"}.get(self.every, f"every:{self.every}")

    def keeps(self, checkpoint: int) -> bool:
        """Whether a checkpoint (numbered from 0) stays once there is a newer one."""
        return self.every > 0 and (checkpoint + 1) % self.every == 0

    def prune(self, run: "RunDirectory", newest: int) -> None:
        """Drops the states before step `newest` that need not stay. The state of `newest` must be complete."""
        if self.every == 1:
            return
        for step in run.kept():
            if 0 < step < newest and not self.keeps(run.job.checkpoint_of(step)):
                run.drop_state(step)


ALL = Keep(1)
