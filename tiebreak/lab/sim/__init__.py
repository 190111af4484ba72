"""Adversaries and whole games between them and honest parties."""
