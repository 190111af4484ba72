"""Hugging Face trainers, whose steps the engine computes."""
