"""Disputes: played in one process, judged from the posts of a hub, and simulated."""
