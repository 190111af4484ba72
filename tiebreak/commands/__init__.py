"""The commands of `tiebreak`, in the order of its help: one module for each, which declares and does it."""

from typing import Final

import click

from tiebreak.commands.agree import agree
from tiebreak.commands.audit import audit
from tiebreak.commands.calibrate import calibrate
from tiebreak.commands.capture import capture
from tiebreak.commands.data import data
from tiebreak.commands.demo import demo
from tiebreak.commands.deploy import deploy
from tiebreak.commands.devnet import devnet
from tiebreak.commands.dispute import dispute
from tiebreak.commands.doctor import doctor
from tiebreak.commands.economics import economics
from tiebreak.commands.key import key
from tiebreak.commands.report import report
from tiebreak.commands.scale import scale
from tiebreak.commands.simulate import simulate
from tiebreak.commands.train import train

COMMANDS: Final[tuple[click.Command, ...]] = (
    demo,
    doctor,
    key,
    data,
    capture,
    calibrate,
    agree,
    train,
    audit,
    dispute,
    devnet,
    deploy,
    simulate,
    economics,
    scale,
    report,
)
