"""Torch: captures a model as a program, runs it with controlled rounding, trains, audits. Imports only protocol."""
