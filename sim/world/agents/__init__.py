"""The honest parties. Each is a set of processes that wait for something to change, and small methods to override."""

from sim.world.agents.agent import Agent
from sim.world.agents.auditor import Auditor
from sim.world.agents.builder import Builder
from sim.world.agents.client import Client
from sim.world.agents.playing import GameView, Player, Reply
from sim.world.agents.trainer import Trainer

__all__ = ["Agent", "Auditor", "Builder", "Client", "GameView", "Player", "Reply", "Trainer"]
