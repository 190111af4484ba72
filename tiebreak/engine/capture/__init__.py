"""Turns a PyTorch model and loss into instructions. No other part of the engine knows torch's tracing.

`rehearsal` has the plan of all checks, and makes those that come before the trace: `step_run` runs the step in plain
PyTorch, `side_effects`, `outside` and `reach` see what it does besides computing. `tracing` makes one flat graph of
ATen calls, forward and backward, on tensors without data (`undecomposed` lists the operators that torch must leave
whole). `folding` computes everything that no parameter, batch or random draw decides. `step` lowers the rest by the
rules of `tiebreak.engine.lowering` and reports, with `hints`, what has no rule. `captured` puts the program together,
with the entries of `state`, and `check` compares it with eager PyTorch.
"""
