"""Hugging Face trainers, whose steps the engine computes."""

from tiebreak.protocol.errors import ConfigurationError

try:
    import accelerate as _  # noqa: F401
    import transformers
except ImportError as missing:
    raise ConfigurationError(
        f"expected transformers and accelerate, got: {missing}; install them by: pip install 'tiebreak[hf]'"
    ) from missing
if int(transformers.__version__.partition(".")[0]) < 5:  # whose loop, and names of arguments, are others
    raise ConfigurationError(f"expected transformers 5, got {transformers.__version__}; pip install -U transformers")
