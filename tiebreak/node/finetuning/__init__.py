"""A fine-tuning service: the interface that OpenAI's clients speak, over the code of `tiebreak finetune`."""
