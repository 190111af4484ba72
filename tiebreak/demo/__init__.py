"""The demo: the whole path on real data, from agreement to settlement, and what it found."""

from tiebreak.demo.run import run_demo

__all__ = ["run_demo"]
