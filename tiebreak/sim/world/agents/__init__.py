"""The honest parties. Each is a set of processes that wait for something to change, and small methods to override."""

from tiebreak.sim.world.agents.agent import Agent
from tiebreak.sim.world.agents.auditor import Auditor
from tiebreak.sim.world.agents.builder import Builder
from tiebreak.sim.world.agents.client import Client
from tiebreak.sim.world.agents.playing import GameView, Player, Reply
from tiebreak.sim.world.agents.trainer import Trainer

__all__ = ["Agent", "Auditor", "Builder", "Client", "GameView", "Player", "Reply", "Trainer"]
