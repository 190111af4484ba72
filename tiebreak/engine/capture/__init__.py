"""From a PyTorch model and loss to instructions. Nothing else in the engine knows torch's tracing.

`tracing` makes one flat graph of ATen calls, forward and backward, on tensors without data (`undecomposed`: which
operators torch must leave whole); `folding` computes what no parameter, batch or draw decides; `step` lowers the rest
by the rules of `tiebreak.engine.lowering` and reports, with `hints`, what has no rule.
"""
