"""Adversaries and whole games. Imports protocol and engine."""
