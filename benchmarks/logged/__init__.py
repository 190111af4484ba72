"""Measurements of policy `logged` (`make bench-logged`), and its page `docs/logged.md`."""
