"""The demo: the whole path on real data."""
