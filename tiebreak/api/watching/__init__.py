"""Measurements that a worker makes of itself, and the places that show them."""
