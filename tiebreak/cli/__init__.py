"""The commands of `tiebreak`, in the order of its help: one module for each, which declares and does it."""

from typing import Final

import click

from tiebreak.cli.agree import agree
from tiebreak.cli.audit import audit
from tiebreak.cli.calibrate import calibrate
from tiebreak.cli.capture import capture
from tiebreak.cli.data import data
from tiebreak.cli.demo import demo
from tiebreak.cli.deploy import deploy
from tiebreak.cli.devnet import devnet
from tiebreak.cli.dispute import dispute
from tiebreak.cli.doctor import doctor
from tiebreak.cli.economics import economics
from tiebreak.cli.key import key
from tiebreak.cli.scale import scale
from tiebreak.cli.simulate import simulate
from tiebreak.cli.train import train

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
)
