"""Measurements that a worker makes of itself, and the rules that judge them."""
