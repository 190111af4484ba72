"""Policy `logged` between the CPU and a device: calibration, and runs of each audited by the other."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.roots import STEPS
from benchmarks.gpu.workloads import Context
from benchmarks.table import Row, rows_of
from tiebreak.api.machine import Machine
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.calibrating import calibrate
from tiebreak.api.training.runs import Run, agree_on
from tiebreak.protocol.commitments.eip712 import Address, Domain
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.errors import StateError
from tiebreak.protocol.numbers.float32 import MAX_PRECISION

CLIENT, TRAINER = PrivateKey.from_int(11), PrivateKey.from_int(12)
DOMAIN = Domain(chain_id=1337, contract=Address(bytes(19) + b"\x01"))


def measure(context: Context) -> Iterator[Row]:
    """Raises `StateError` if an audit of an honest run does not agree."""
    device = str(context.device)
    wanted = {name: context.workloads[name] for name in ("digits", "text") if name in context.workloads}
    bundles = {name: capture_bundle(workload.task(6 if context.trial else STEPS)) for name, workload in wanted.items()}
    policy = calibrate(*bundles.values(), precision=MAX_PRECISION, devices=() if device == "cpu" else (device,))
    context.told["policy"] = policy.digest
    assert policy.measurements is not None
    for kind, seen in policy.measurements.sums.items():
        values = {"divergence": seen.divergence, "logged": seen.logged, "threshold": policy.thresholds[kind] or 0.0}
        yield from rows_of(f"calibrated, {kind.name.lower()}", "", values)
    for name, bundle in bundles.items():
        for trainer, auditor in dict.fromkeys(((device, "cpu"), ("cpu", device))):
            case = f"{name}, trained on {trainer}, audited on {auditor}"
            with TemporaryDirectory() as folder:
                run = agree_on(
                    bundle, Path(folder, "run"), client=CLIENT, trainer=TRAINER, terms=Terms(), domain=DOMAIN,
                    policy=policy,
                )  # fmt: skip
                Run(run, Machine(device=trainer)).resume(TRAINER, progress=False)
                found = Run(run, Machine(device=auditor, policy=policy)).audit()
            if found.fraud is not None:
                raise StateError(f"{case}: expected agreement, got {found!r}")
            counts = {
                "log entries": found.log.entries,
                "entries needed": found.log.needed,
                "steps that agree": found.steps,
            }
            yield from rows_of(case, "", counts)
