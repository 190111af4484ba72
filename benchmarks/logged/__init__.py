"""Policy `logged` measured (`make bench-logged`), and its page `docs/logged.md`."""
