"""The lab's commands, which an entry point registers: the command line lists them without importing them."""

from typing import Final

from tiebreak.cli.registry import CommandSet

COMMANDS: Final = CommandSet(
    package=__name__,
    groups={
        "Start": {
            "demo": "Play the whole path on real data: agree, train, commit, audit, cheat, dispute, settle.",
            "up": "Run a chain, a hub with its pages, a client, a trainer and an auditor here, until Ctrl-C.",
        },
        "Studies": {
            "simulate": "Play games in which somebody cheats, and check that the system keeps its promises.",
            "economics": "Recommend stakes, reward, fee and windows for a job, and how far off your figures may be.",
        },
    },
    needs={"demo": "demo", "simulate": "sim", "up": "node"},
)
