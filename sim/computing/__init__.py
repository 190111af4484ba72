"""Runs in memory, and the cache of what an honest run computes: thousands of games over one small computation."""
