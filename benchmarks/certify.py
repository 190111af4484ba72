"""Checks weights against their certificate, compared with `sha256sum` of the same file.

    python -m benchmarks.certify

The weights are random numbers in the shapes of GPT-2 124M (0.5 GB in 148 tensors), the state has Adam's moments too,
and the job a million steps with a checkpoint after each. Nothing was trained: the certificate is made for a run tree
that holds the record. Both are whole commands on a file that is in the system's cache, and take turns. OpenSSL is named
too, because it uses the processor's SHA instructions, which not every `sha256sum` does.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Final

import click
from safetensors.torch import save_file

from benchmarks.commit import filled, gpt2
from benchmarks.table import Row, interleaved, placed, publish, rows_of
from tiebreak.api.certification.certificates import read_weights
from tiebreak.protocol import trees
from tiebreak.protocol.commitments.certificate import Certificate, Weights
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import StepRecord, state_tree
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.tags import Digest

STEPS: Final = 1_000_000
REPEATS: Final = 7
CLIENT, TRAINER = PrivateKey.from_int(11), PrivateKey.from_int(12)


def certificate_of(weights: Path) -> bytes:
    """A certificate over a file of GPT-2's shapes, signed by both parties."""
    found = read_weights(weights)
    ids = {name: Digest(sha256(name.encode()).digest()) for name in gpt2()}
    ids |= {f"model.{name}": digest for name, digest in found.tensors.items()}
    root = Digest(sha256(b"another root").digest())
    job = Job(
        client=CLIENT.address, trainer=TRAINER.address, program_root=root, body_count=1 << 12, state_count=len(ids),
        data_count=1, initial_state_root=root, data_root=root, steps=STEPS, checkpoint_interval=1,
        **asdict(Terms(audit_time=60)),
    )  # fmt: skip
    tree = state_tree(ids)
    record = StepRecord(step=STEPS, state_root=tree.root, loss_bits=0)
    path = tuple(Digest(sha256(bytes([level])).digest()) for level in range(job.run_depth))
    head = Head(job_id=job.id, count=STEPS, run_root=trees.fold(record.digest, STEPS - 1, path))
    made = Certificate(
        agreement=SignedJob(
            domain=OFF_CHAIN, job=job, client_signature=job.sign(OFF_CHAIN, CLIENT),
            trainer_signature=job.sign(OFF_CHAIN, TRAINER),
        ),
        head=SignedHead.sign(head, OFF_CHAIN, TRAINER), record=record, path=path, files=found.files,
        weights=Weights.of(tree, sorted(ids), {name: f"model.{name}" for name in found.tensors}, "model."),
    )  # fmt: skip
    return sign(sign(Envelope(payload=made.payload), TRAINER), CLIENT).encode()


@click.command()
@placed
def main(folder: Path) -> None:
    """Measure the size of a certificate, and `tiebreak verify` against hashing the file."""
    state, _ = filled({name: shape for name, shape in gpt2().items() if name.startswith("model.")})
    with tempfile.TemporaryDirectory() as scratch:
        weights, certificate = Path(scratch) / "model.safetensors", Path(scratch) / "certificate.json"
        save_file({name.removeprefix("model."): tensor for name, tensor in state.items()}, weights)
        certificate.write_bytes(certificate_of(weights))
        bytes_, size = len(certificate.read_bytes()), weights.stat().st_size

        def command(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

        seconds = interleaved({
            "tiebreak verify": command(sys.executable, "-m", "tiebreak", "verify", str(weights), str(certificate)),
            "sha256sum": command("sha256sum", str(weights)),
            "openssl dgst -sha256": command("openssl", "dgst", "-sha256", str(weights)),
        }, REPEATS)  # fmt: skip
    case = f"GPT-2 124M, {size / 1e9:.2f} GB in {len(state)} tensors"
    verify, plain, openssl = seconds.values()
    ratios = {"verify / sha256sum": verify / plain, "verify / openssl": verify / openssl}
    rows = rows_of(case, "s", seconds) + rows_of(case, "x", ratios, {"verify / sha256sum": "<= 1.5"})
    case = f"{STEPS:,} steps, two signatures"
    rows.append(Row(metric="certificate", case=case, value=bytes_, unit="bytes", target="< 20,000"))
    publish("certify", rows, "medians of whole commands", folder=folder)


if __name__ == "__main__":
    main()
