"""Golden runs: the programs of the corpus that tests train by themselves. Nothing here needs torch."""

from tiebreak.api.corpus.programs import CORPUS, read

FOLDER, load = CORPUS, read
MODELS = ("gpt2", "resnet", "llama")
TINY = ("mlp", "mixed")
"""So small that the integer reference runs them; `mixed` under autocast to bfloat16."""
NAMES = (*TINY, *MODELS)
COMMAND = "python -m tests.golden.make"
STEPS, INTERVAL = 25, 5
