"""The lab's commands, which an entry point registers: the command line lists them without importing them."""

from typing import Final

from tiebreak.cli.main import CommandSet

COMMANDS: Final = CommandSet(
    package=__name__,
    groups={
        "Start": {
            "demo": "Play the whole path: train, audit, cheat, dispute, settle.",
            "up": "Run chain, hub, pages and parties here, to watch in a browser.",
        },
        "Studies": {
            "simulate": "Play games with cheats, and check that promises are kept.",
            "economics": "Recommend stakes, reward, fee and windows for a job.",
            "worst": "Measure how much longer hostile data take than ordinary data.",
        },
    },
    needs={"demo": "demo", "simulate": "sim,train", "up": "node,train", "worst": "train"},
)
