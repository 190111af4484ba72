"""The modules of `tiebreak.api` by their short names, for type checkers and editors."""

from tiebreak.api import data
from tiebreak.api.agreement import offers, sealing
from tiebreak.api.auditing import audits, forward, progress
from tiebreak.api.builtin import loader
from tiebreak.api.certification import attestation, certificates, claims, issuance, job_data, lineage, ownership
from tiebreak.api.certification import job_receipts as job_receipts
from tiebreak.api.certification import ordered_jobs as ordered_jobs
from tiebreak.api.certification import removal as removal
from tiebreak.api.chain import boards, chains, endings, onchain, weights
from tiebreak.api.corpus import corpus_runs
from tiebreak.api.data import importing
from tiebreak.api.disputing import disputes, judging
from tiebreak.api.machine import environment, interpreters, qualification
from tiebreak.api.provenance import about, cards, formats, source, x509_chains
from tiebreak.api.signing import attesting, keys
from tiebreak.api.training import bundle, calibrating, distributed, finetuning, reading, runs, trackers
from tiebreak.api.watching import alarms, monitoring, sampling

__all__ = ["about", "alarms", "attestation", "attesting", "audits", "boards", "bundle", "calibrating", "cards"]
__all__ += ["certificates", "chains", "claims", "corpus_runs", "data", "disputes", "distributed", "endings"]
__all__ += ["environment", "finetuning", "formats", "forward", "importing", "interpreters", "issuance", "job_data"]
__all__ += ["job_receipts", "judging", "keys", "lineage", "loader", "monitoring", "offers", "onchain", "ordered_jobs"]
__all__ += ["ownership", "progress", "qualification", "reading", "removal", "runs", "sampling", "sealing", "source"]
__all__ += ["trackers", "weights", "x509_chains"]
