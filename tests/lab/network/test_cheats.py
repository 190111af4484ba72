"""Each cheat of `tiebreak up` is convicted of one number, and the page of its game shows it."""

import re
import shutil
from pathlib import Path

import pytest

from tests.lab.pages.staged import Staged
from tests.lab.pages.test_pages import client
from tests.tiebreak.node.test_worker_tasks import CLIENT, COUNT, TRAINER, answer, bench, replay
from tiebreak.api.training.bundle import capture_bundle
from tiebreak.api.training.runs import agree_on
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.lab.network.cheating_worker import TamperedTasks
from tiebreak.lab.network.local_network import CHEATS
from tiebreak.lab.sim.world.small_task import STEPS, small_task
from tiebreak.node.tasks import Compute
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import Head, SignedHead
from tiebreak.protocol.commitments.terms import Terms
from tiebreak.protocol.game import rules
from tiebreak.protocol.game.moves import Move, Side
from tiebreak.protocol.game.snapshot import Snapshot
from tiebreak.protocol.game.state import Reason
from tiebreak.protocol.parties import events as e
from tiebreak.protocol.parties.board import Board, JobStatus, PublicGame, PublicJob
from tiebreak.protocol.parties.driver import Turn
from tiebreak.protocol.tags import Digest

pytestmark = pytest.mark.slow

PLACES = {
    "label": "0x000000000000000 0 0 as element 0 It computes to 0x000000000000000 1 1",
    "rate": "0.00749999983 as element 0 It computes to",
    "weight": "State entry 0 of 24 model.head.bias Both claims The trainer committed",
    "tf32": "0.225097656 as element 7 Its sum up to term 35 is 0.206681645 exactly",
}
"""What the page of a game shows of a cheat: the place and what was committed there."""


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The simulator's small task, agreed and not trained."""
    folder = tmp_path_factory.mktemp("agreed") / "run"
    return agree_on(capture_bundle(small_task()), folder, client=CLIENT, trainer=TRAINER, terms=Terms(),
                    domain=OFF_CHAIN)  # fmt: skip


@pytest.fixture
def folder(agreed: RunDirectory, tmp_path: Path) -> Path:
    """A party's folder with the files of the job."""
    shutil.copytree(agreed.path, tmp_path / "jobs" / agreed.job.id.hex())
    return tmp_path


@pytest.mark.parametrize("cheat", CHEATS)
def test_each_cheat_of_up_is_convicted_by_recomputing_one_number(
    agreed: RunDirectory, folder: Path, cheat: str
) -> None:
    """Its evidence fits its head down to the last opening, so a game goes on to what the referee recomputes.

    The page of the game says so, and shows both numbers.
    """
    task = Compute(work=e.Train(job_id=agreed.job.id, count=COUNT), job=agreed.job)
    auditor = bench(folder)
    liar = TamperedTasks(cheat, auditor._settings, lambda _: None)
    lie = answer(liar, task).root
    assert lie is not None
    assert answer(auditor, replay(agreed, lie, 0)).root != lie
    head, game = Head(job_id=agreed.job.id, count=COUNT, run_root=Digest(lie)), Digest(bytes(32))
    start, line = rules.start(agreed.job, head, game, 1), list[Move]()
    state = start
    while not state.is_over:
        defends = state.mover is Side.DEFENDER
        turn = Turn(state=state, line=tuple(line), defends=int(defends))
        work = e.Gather(game_id=game, sequence=state.moves, snapshot=Snapshot.of(state).id)
        move = answer(liar if defends else auditor, Compute(work=work, job=agreed.job, turn=turn)).move
        assert move is not None
        line.append(move)
        state = rules.apply(state, move, max(1, state.earliest))
    assert state.verdict is not None
    assert (state.verdict.winner, state.verdict.reason) == (Side.CHALLENGER, Reason.RECOMPUTED)
    source = Staged(domain=OFF_CHAIN, at=state.last, board=Board(), seen={agreed.job.id: []}, known=agreed.program)
    job = PublicJob(job=agreed.job, status=JobStatus.SLASHED, last_progress=1)
    source.board.jobs[job.id] = job
    source.board.games[game] = PublicGame(
        id=game, job=job, challenger=CLIENT.address, head=SignedHead.sign(head, OFF_CHAIN, TRAINER), state=state,
        started=1, moves=line,
    )  # fmt: skip
    page = " ".join(re.sub("<[^>]*>", " ", client(source).get(f"/games/{game.hex()}").text).split())
    assert "The trainer was wrong A referee recomputed this one place from what was opened" in page
    assert f"Step {state.step} of {STEPS}" in page
    assert PLACES[cheat] in page
    assert " The trainer committed 0x" in page
