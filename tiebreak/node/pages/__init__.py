"""The pages of a hub: what happens between the parties, for people who watch."""

from tiebreak.node.pages.model import Seen, Source
from tiebreak.node.pages.routes import routes

__all__ = ["Seen", "Source", "routes"]
