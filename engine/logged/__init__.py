"""Policy `logged` (SPEC section 5.1): the trainer records how it rounded near ties, the auditor follows its log."""
