"""The pages of a hub: what happens between the parties, for people who watch."""

from tiebreak.node.pages.model import PageSource, ReadPost
from tiebreak.node.pages.routes import routes

__all__ = ["PageSource", "ReadPost", "routes"]
