"""Policy `logged` of the paper (SPEC section 5.1): the trainer records how it rounded near ties, the auditor follows.

`journal` has the paper's Algorithm 4 (`log`), `log_replay` its Algorithm 2 (`audit`), `calibration` its Algorithm 3
(`threshold`); Algorithm 1 (`train`) is the loop of `tiebreak.engine.run.train`.
"""
