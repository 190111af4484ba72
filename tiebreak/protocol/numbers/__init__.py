"""FP32 in integers: rounding, transcendental functions, Philox."""
