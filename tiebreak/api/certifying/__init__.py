"""Certificates of weights, and claims of ownership: made, checked, and said in other formats."""
