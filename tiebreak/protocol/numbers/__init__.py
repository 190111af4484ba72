"""FP32 arithmetic in integers: rounding, transcendental functions, Philox."""
