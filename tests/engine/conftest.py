"""Fixtures of the engine's tests: runs of the tiny job, and one whose trainer took every liberty of policy `logged`."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiebreak.engine.arithmetic.c import sums, threads
from tiebreak.engine.capture.captured import Captured, Terms, capture_task, draft_job, sign_job
from tiebreak.engine.logged import journal
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.job import SignedJob

from . import logged_cases
from .tiny import CLIENT, DOMAIN, TRAINER, make_tiny_task
from .undefined import undefined


@pytest.fixture(scope="session")
def tiny() -> Captured:
    return capture_task(make_tiny_task())


@pytest.fixture(scope="session")
def agreement(tiny: Captured) -> SignedJob:
    job = draft_job(
        tiny, steps=12, checkpoint_interval=3, client=CLIENT.address, trainer=TRAINER.address, terms=Terms(clock=1000)
    )
    return sign_job(job, DOMAIN, client=CLIENT, trainer=TRAINER)


@pytest.fixture
def new_run(tiny: Captured, agreement: SignedJob, tmp_path: Path) -> Callable[[str], RunDirectory]:
    return lambda name: logged_cases.new_run(tmp_path / name, agreement, tiny)


@pytest.fixture(autouse=True)
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share even the smallest work, where there are several."""
    monkeypatch.setattr(threads, "SMALL", 0)


@pytest.fixture(autouse=True)
def unwritten() -> Iterator[None]:
    """What no kernel writes holds what is right nowhere."""
    with undefined():
        yield


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled kernels: for what only the pure paths have."""
    monkeypatch.setenv("TIEBREAK_NATIVE", "0")


@pytest.fixture(params=("pure", "compiled") if sums.build().library is not None else ("pure",))
def kernel(request: pytest.FixtureRequest) -> str:
    """Runs a test with the kernels of this machine's compiler, where there is one, and without."""
    if request.param == "pure":
        request.getfixturevalue("pure")
    return str(request.param)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The finished run of a trainer that flips (`logged_cases.Flipping`), at FP32. Not to be written to."""
    run = logged_cases.new_run(tmp_path_factory.mktemp("logged") / "trainer", logged_cases.logged_job())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "Recorder", logged_cases.Flipping)
        logged_cases.train(run)
    return run


@pytest.fixture
def flipped(trained: RunDirectory, tmp_path: Path) -> RunDirectory:
    return RunDirectory.open(Path(shutil.copytree(trained.path, tmp_path / "trainer")))
