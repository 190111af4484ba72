"""The modules of `tiebreak.api` by their short names, for type checkers and editors."""

from tiebreak.api import data
from tiebreak.api.agreement import offers, sealing
from tiebreak.api.auditing import audits, forward, progress
from tiebreak.api.builtin import loader
from tiebreak.api.certification import (
    attestation,
    certificates,
    claims,
    issuance,
    job_data,
    job_receipts,
    lineage,
    ordered_jobs,
    ownership,
    removal,
)
from tiebreak.api.chain import boards, chains, endings, onchain, weights
from tiebreak.api.corpus import corpus_runs
from tiebreak.api.data import importing
from tiebreak.api.disputing import disputes, judging
from tiebreak.api.evaluation import evaluations, examples, generation, lm_eval_model
from tiebreak.api.huggingface import sampled_rollouts
from tiebreak.api.machine import environment, interpreters, qualification
from tiebreak.api.provenance import about, cards, formats, source, x509_chains
from tiebreak.api.signing import attesting, keys
from tiebreak.api.training import bundle, calibrating, distributed, finetuning, reading, runs, scoring, trackers
from tiebreak.api.watching import alarms, monitoring, sampling

__all__ = ["about", "alarms", "attestation", "attesting", "audits", "boards", "bundle", "calibrating", "cards"]
__all__ += ["certificates", "chains", "claims", "corpus_runs", "data", "disputes", "distributed", "endings"]
__all__ += ["environment", "evaluations", "examples", "finetuning", "formats", "forward", "generation", "importing"]
__all__ += ["interpreters", "issuance", "job_data", "job_receipts", "judging", "keys", "lineage", "lm_eval_model"]
__all__ += ["loader", "monitoring", "offers", "onchain", "ordered_jobs", "ownership", "progress", "qualification"]
__all__ += ["reading", "removal", "runs", "sampled_rollouts", "sampling", "scoring", "sealing", "source", "trackers"]
__all__ += ["weights", "x509_chains"]
