"""The demo: the whole path on real data, from agreement to settlement, and what it found."""
