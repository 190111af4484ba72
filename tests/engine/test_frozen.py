"""Entries that no step changes: stored once, held in bfloat16 where that is exact, and bit for bit what they were."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.conftest import CaseCounter
from tests.engine import logged_cases
from tests.engine.together import train_alone, train_together
from tests.parts import slow_except
from tiebreak.api.disputing.disputes import dispute
from tiebreak.api.machine import Machine
from tiebreak.api.machine.interpreters import use_threads
from tiebreak.engine.arithmetic.c import sums
from tiebreak.engine.arithmetic.c.backend import CBackend
from tiebreak.engine.arithmetic.plain.backend import TorchBackend
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.formats import map_tensors, read_tensors, write_tensors
from tiebreak.engine.data.tensors import identities, identity, widened
from tiebreak.engine.distributed import partition
from tiebreak.engine.distributed.exchange import Collectives, Swap
from tiebreak.engine.distributed.layout import Split
from tiebreak.engine.logged import journal
from tiebreak.engine.run import commit
from tiebreak.engine.run import interpreter as interpreters
from tiebreak.engine.run.audit import SegmentAuditor
from tiebreak.engine.run.commit import Committer, make_record
from tiebreak.engine.run.cost import cost_of, require_memory
from tiebreak.engine.run.directory import STATES, RunDirectory, state_name
from tiebreak.engine.run.interpreter import NotFiniteError, State
from tiebreak.engine.run.segments import compare
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.program.isa import DType

from .frozen_cases import BIAS, EMBEDDING, INTERVAL, STEPS, adapted, machine, new_run, work
from .tiny import TRAINER


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = new_run(tmp_path / "run")
    work(made)
    return made


def narrowed(state: Mapping[str, Tensor]) -> State:
    """The state with what no step changes in bfloat16 where that is exact."""
    frozen = adapted().program.frozen
    short = {n: state[n].to(torch.bfloat16) for n in frozen if state[n].dtype == torch.float32}
    return {**state, **{n: x for n, x in short.items() if torch.equal(x.float(), state[n])}}


def test_frozen_state_entries_are_detected_and_held_in_bfloat16() -> None:
    made = adapted()
    assert {EMBEDDING, BIAS, "model.base.weight", "model.norm.weight"} <= made.program.frozen
    assert not {name for name in made.program.frozen if "down" in name or "up" in name or "optimizer" in name}
    held = {name for name, tensor in narrowed(made.state).items() if tensor.dtype == torch.bfloat16}
    assert held == made.program.frozen - {BIAS}


def test_frozen_entries_count_once_in_the_memory_estimate() -> None:
    program, frozen = adapted().program, 4 * (11 * 8 + 8 * 8 + 8 + 2 * 8 + 11)
    cost = cost_of(program)
    assert cost.state_bytes - cost.changed_bytes == frozen
    assert cost.memory_bytes == 2 * cost.changed_bytes + frozen + cost.data_bytes + cost.live_bytes
    scratch = max(8 * sum(program.body[a.value].numel for a in i.operands) for i in program.body if i.is_reduction)
    least = cost.memory_bytes - cost.data_bytes + scratch
    require_memory(program, least)
    with pytest.raises(ConfigurationError, match="GiB of memory here"):
        require_memory(program, least - 1)


def test_all_bfloat16_bit_patterns_survive_storage(tmp_path: Path, cases: CaseCounter) -> None:
    """Of NaN only those with a payload are written as the one that is committed."""
    bits = torch.arange(1 << 16, dtype=torch.int32)
    short = bits.to(torch.int16).view(torch.bfloat16)
    wide = (bits << 16).view(torch.float32)
    assert torch.equal(widened(short).view(torch.int32), bits << 16)
    assert identity(short) == identity(wide)
    spec = {"x": (DType.F32, (1 << 16,))}
    with Folder(tmp_path) as folder:
        for number, tensor in enumerate((short, wide)):
            write_tensors(folder, f"{number}.safetensors", {"x": tensor}, narrow=True)
            for narrow in ((), ("x",)):
                found = read_tensors(folder, f"{number}.safetensors", spec, narrow=narrow)["x"]
                assert found.dtype == (torch.bfloat16 if narrow else torch.float32)
                assert identity(found) == identity(wide)
                same = widened(found).view(torch.int32) == bits << 16
                assert same[~wide.isnan()].all()
        write_tensors(folder, "fine.safetensors", {"x": wide + 2.0**-140}, narrow=True)
        assert load_file(tmp_path / "fine.safetensors")["x"].dtype == torch.float32
    cases(1 << 16)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("threads", slow_except([1, 2], 2))
def test_holding_frozen_entries_in_bfloat16_changes_no_step(threads: int, cases: CaseCounter) -> None:
    made = adapted()
    use_threads(threads)
    held, short = machine(), machine()
    state, other, data = held.to_device(made.state), short.to_device(narrowed(made.state)), held.place_data(made.data)
    frozen = {name: other[name] for name in made.program.frozen}
    for step in range(1, STEPS + 1):
        found, narrow = held.step(step, state, data), short.step(step, other, data, donate=step > 1)
        state, other = found.state, narrow.state
        assert found.loss_bits == narrow.loss_bits
        assert all(other[name] is tensor for name, tensor in frozen.items())
        assert make_record(step, state, found.loss_bits) == make_record(step, other, narrow.loss_bits)
    use_threads(1)
    cases(STEPS)


def test_observers_see_frozen_entries_as_float32_and_may_replace_them() -> None:
    made, wide, short = adapted(), dict[int, bytes](), dict[int, bytes]()
    machines = machine(), machine()
    for found, interpreter, state in zip((wide, short), machines, (made.state, narrowed(made.state)), strict=True):

        def observe(leaf: int, tensor: Tensor, found: dict[int, bytes] = found) -> Tensor:
            assert tensor.dtype != torch.bfloat16
            found[leaf] = identity(tensor)
            return tensor

        result = interpreter.step(1, interpreter.to_device(state), interpreter.place_data(made.data), observe)
        assert result.state.keys() == made.program.state_spec().keys()
    assert wide == short
    (source,) = (n for n in machines[1].unchanged if getattr(made.program.body[n].params, "name", "") == EMBEDDING)
    state = machines[1].to_device(narrowed(made.state))
    changed = machines[1].step(
        1, state, machines[1].place_data(made.data), lambda leaf, x: x + 1 if leaf == source else x
    )
    assert torch.equal(changed.state[EMBEDDING], made.state[EMBEDDING] + 1)


@pytest.mark.parametrize("piece", [interpreters.PIECE, 7])
def test_non_finite_frozen_entries_are_refused_in_either_dtype(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "PIECE", piece)
    made = adapted()
    for state in (made.state, narrowed(made.state)):
        broken = state[EMBEDDING].clone()
        broken[10] = float("inf")
        interpreter = machine()
        with pytest.raises(NotFiniteError, match="step 1"):
            interpreter.step(1, interpreter.to_device({**state, EMBEDDING: broken}), interpreter.place_data(made.data))
        given = {**state, EMBEDDING: torch.full_like(broken, -float("nan"))}
        found = machine().step(1, given, made.data, check_finite=False).state[EMBEDDING]
        assert found.dtype == broken.dtype
        assert set(widened(found).view(torch.int32).flatten().tolist()) == {0x7FC00000}


def test_a_checkpoint_holds_only_what_changed(run: RunDirectory) -> None:
    first, last = (load_file(run.state_path(step)) for step in (0, STEPS))
    assert first.keys() == run.program.state_spec().keys()
    assert last.keys() == first.keys() - run.program.frozen
    assert {name for name, x in first.items() if x.dtype == torch.bfloat16} >= run.program.frozen - {BIAS}
    assert first[BIAS].dtype == torch.float32
    wide, short = run.state(STEPS), run.state(STEPS, narrow=True)
    assert {x.dtype for x in wide.values()} == {torch.float32}
    assert {name for name, x in short.items() if x.dtype == torch.bfloat16} == run.program.frozen - {BIAS}
    assert identities(wide) == identities(short)
    assert state_tree(identities(wide)).root == run.record_of(STEPS).state_root


def test_a_killed_run_with_frozen_weights_resumes_and_is_audited(run: RunDirectory, tmp_path: Path) -> None:
    records, state = train_alone(adapted(), STEPS)  # in f32, all of it
    assert [record.digest for record in run.records()] == records[INTERVAL - 1 :: INTERVAL]
    again = new_run(tmp_path / "again")
    work(again, 2 * INTERVAL)
    (again.path / STATES / ".000000000012.safetensors.part").write_bytes(b"half")
    assert work(again) == run.root()
    assert identities(again.state(STEPS)) == identities(state)
    for permute in (None, 5):
        audit = SegmentAuditor(run, machine(permute), run.records()).audit((0, 2, 3, 5))
        assert audit.agrees
        assert audit.starts == [0, 2 * INTERVAL, 5 * INTERVAL]


def test_frozen_entries_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    real = commit.identities
    monkeypatch.setattr(commit, "identities", lambda tensors: hashed.extend(tensors) or real(tensors))
    made = new_run(tmp_path / "run")
    work(made)
    assert hashed.count(EMBEDDING) == 1
    assert hashed.count("telemetry.loss") == STEPS // INTERVAL


def test_a_checkpoint_from_a_device_copies_only_what_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what no step changes is known, and takes no memory twice."""
    seen: list[State] = []
    monkeypatch.setattr(commit, "launches", lambda _: True)
    monkeypatch.setattr(Committer, "_commit", lambda _, _step, state, *_more: seen.append(state))
    made, state = new_run(tmp_path / "run"), {name: tensor.clone() for name, tensor in adapted().state.items()}
    with Committer(made).from_step(0) as committer:
        committer.submit(INTERVAL, state, 0)
        committer.wait()
    assert {name for name in state if seen[0][name] is state[name]} == made.program.frozen
    assert all(torch.equal(seen[0][name], state[name]) for name in state)


@pytest.mark.parametrize("workers", slow_except([2, 3], 3))
@pytest.mark.parametrize("backends", [(), (TorchBackend, CBackend)], ids=["alike", "mixed"])
def test_several_workers_compute_the_same_run_with_shards_in_bfloat16(
    run: RunDirectory, workers: int, backends: Sequence[type[TorchBackend]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "LEAST", 1)
    made, gather, sent = adapted(), Collectives.gather, Counter[torch.dtype]()

    def watched(self: Collectives, shard: Tensor, split: Split) -> Swap:
        sent[shard.dtype] += 1
        return gather(self, shard, split)

    monkeypatch.setattr(Collectives, "gather", watched)
    records, whole = train_together(made, workers, STEPS, state=narrowed(made.state), backends=backends)
    assert sent[torch.bfloat16] >= workers * STEPS
    assert whole[EMBEDDING].dtype == torch.bfloat16
    assert [record.digest for record in run.records()] == records[INTERVAL - 1 :: INTERVAL]
    assert identities(whole) == identities(run.state(STEPS))


@pytest.mark.usefixtures("kernel")
def test_logs_of_sums_of_frozen_weights_are_followed_in_either_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged_cases, "captured", lambda: adapted(rounds=False))
    monkeypatch.setattr(journal, "Recorder", logged_cases.Flipping)
    monkeypatch.setattr(sums, "PANEL", 1 << 7)  # so that products by the embedding have several
    made = logged_cases.new_run(tmp_path / "run", logged_cases.logged_job())
    logged_cases.train(made)
    found, state = [logged_cases.replay(made, tmp_path / "short", permute=3)], RunDirectory.state
    monkeypatch.setattr(RunDirectory, "state", lambda run, step, root=None, **_: state(run, step, root))
    found.append(logged_cases.replay(made, tmp_path / "wide", permute=5))
    for done in found:
        assert compare(done.run, made.heads()[-1]).agrees
        assert done.report.entries == found[0].report.entries
        assert done.report.needed > 0


def rewritten(path: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


HOSTILE: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "an entry too few": (lambda x: x.pop("telemetry.loss"), r"missing \['telemetry.loss'\]"),
    "an entry too many": (lambda x: x.update(more=torch.ones(1)), r"unexpected \['more'\]"),
    "some of what no step changes": (lambda x: x.update({BIAS: torch.full((11,), 0.1)}), "missing .*model.base.bias"),
    "another shape": (lambda x: x.update({"model.up.weight": torch.ones(2, 8).bfloat16()}), r"expected F32 \(8, 2\)"),
    "another dtype": (lambda x: x.update({"model.up.weight": torch.ones(8, 2).half()}), "got F16"),
    "other numbers": (lambda x: x.update({"model.up.weight": torch.ones(8, 2).bfloat16()}), "expected root"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_checkpoints_are_refused(run: RunDirectory, kind: str) -> None:
    change, message = HOSTILE[kind]
    path = run.state_path(STEPS)
    rewritten(path, change)
    with pytest.raises(VerificationError, match=rf"{re.escape(str(path))}.*{message}"):
        run.state(STEPS)
    assert run.last_complete() == STEPS - INTERVAL


def test_a_damaged_initial_state_is_found_through_each_checkpoint(run: RunDirectory) -> None:
    path = run.state_path(0)
    whole = path.read_bytes()
    rewritten(path, lambda x: x[EMBEDDING].mul_(2))
    for step in (0, STEPS):
        with pytest.raises(VerificationError, match="expected root"):
            run.state(step)
    path.write_bytes(whole[: len(whole) // 2])
    for step in (0, STEPS):
        with pytest.raises(EncodingError, match=re.escape(str(path))):
            run.state(step)
    path.write_bytes(whole)
    rewritten(path, lambda x: [x.pop(name) for name in run.program.frozen])
    with pytest.raises(EncodingError, match="missing"):
        run.state(0)


def test_bfloat16_files_are_refused_as_other_dtypes_and_as_data(tmp_path: Path) -> None:
    save_file({"x": torch.ones(4).bfloat16()}, tmp_path / "f")
    with Folder(tmp_path) as folder:
        for dtype in (DType.I64, DType.BOOL):
            with pytest.raises(EncodingError, match=rf"expected {dtype.name} \(4,\), got BF16"):
                read_tensors(folder, "f", {"x": (dtype, (4,))})
        with pytest.raises(EncodingError, match=r"expected F32 \(4,\), got BF16"):
            map_tensors(folder, "f", {"x": (DType.F32, (4,))})
        assert torch.equal(read_tensors(folder, "f", {"x": (DType.F32, (4,))})["x"], torch.ones(4))


def lie(run: RunDirectory, at: int) -> None:
    """Trains as a cheat that moves one frozen weight at a checkpoint, and stores whole states to hide it."""
    interpreter = machine()
    state, data = interpreter.to_device(run.state(0)), interpreter.place_data(run.data())
    with Committer(run, key=TRAINER).from_step(0) as committer:
        for step in range(1, STEPS + 1):
            result = interpreter.step(step, state, data)
            state = result.state
            if step == at:
                state[EMBEDDING] = state[EMBEDDING].clone()
                state[EMBEDDING][4, 3] += 1
            if run.job.ends_segment(step):
                committer.submit(step, dict(state), result.loss_bits)
                committer.wait()
                with Folder(run.path, STATES) as states:
                    write_tensors(states, state_name(step), state)


def test_a_dispute_locates_a_changed_frozen_weight(run: RunDirectory, tmp_path: Path) -> None:
    liar = new_run(tmp_path / "liar")
    lie(liar, 2 * INTERVAL)
    assert identities(liar.state(STEPS)) != identities(liar.state(0))
    audit = SegmentAuditor(liar, machine(), liar.records()).audit(range(6))
    assert [report.agrees for report in audit.checked] == [True, False]
    found = dispute(liar, run, Machine(threads=1))
    assert found is not None
    assert found.loser == "trainer"
    assert re.search(rf"step {2 * INTERVAL}, .*{re.escape(EMBEDDING)}", found.sentence), found.sentence
