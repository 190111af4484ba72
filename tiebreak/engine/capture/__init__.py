"""Turns a PyTorch model and loss into instructions. No other part of the engine knows torch's tracing.

`rehearsal` has the plan of all checks, and makes those that come before the trace: `step_run` runs the step in plain
PyTorch, and `reach` finds what Python state it can change. `tracing` makes one flat graph of ATen calls, forward and
backward, on tensors without data (`undecomposed` lists the operators that torch must leave whole). `step` computes
everything that no parameter, batch or random draw decides, lowers the rest by the rules of `tiebreak.engine.lowering`
and reports, with advice of `user_code`, what has no rule. `captured` puts the program together, with the entries of
`state`, and `check` compares it with eager PyTorch.
"""
