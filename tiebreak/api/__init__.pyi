"""The modules of `tiebreak.api` by their short names, for type checkers and editors."""

from tiebreak.api import data
from tiebreak.api.agreement import offers, sealing
from tiebreak.api.auditing import audits, forward, progress
from tiebreak.api.builtin import loader
from tiebreak.api.certification import attestation, certificates, claims, issuance, ownership
from tiebreak.api.chain import boards, chains, endings, onchain, weights
from tiebreak.api.corpus import corpus_runs
from tiebreak.api.data import importing
from tiebreak.api.disputing import disputes, judging
from tiebreak.api.machine import environment, interpreters, qualification
from tiebreak.api.signing import keys
from tiebreak.api.training import bundle, calibrating, distributed, finetuning, reading, runs
from tiebreak.api.watching import alarms, monitoring, sampling

__all__ = ["alarms", "attestation", "audits", "boards", "bundle", "calibrating", "certificates", "chains"]
__all__ += ["claims", "corpus_runs", "data", "disputes", "distributed", "endings", "environment", "finetuning"]
__all__ += ["forward", "importing", "interpreters", "issuance", "judging", "keys", "loader", "monitoring", "offers"]
__all__ += ["onchain", "ownership", "progress", "qualification", "reading", "runs", "sampling", "sealing", "weights"]
