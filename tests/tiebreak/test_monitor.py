"""`tiebreak monitor`: an honest run, forged and replayed lines and what is said of each, and what cannot be seen."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import nan
from pathlib import Path
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiebreak.parties import STEPS, Commands, Parties, flip
from tiebreak.api.watching import alarms, sampling
from tiebreak.api.watching.alarms import MONITOR, ProcessStart, Rule, Sample, WorkerStanding, as_line, read_line
from tiebreak.api.watching.monitoring import RunMonitor
from tiebreak.api.watching.sampling import Sampler
from tiebreak.engine.run.directory import METRICS, RunDirectory
from tiebreak.engine.run.train import Progress
from tiebreak.protocol.errors import EncodingError, VerificationError

BEGAN = 1.7e9
SIZE = 1 << 30


def steady(count: int, *, first: int = 1, began: float = BEGAN) -> list[Sample]:
    """What a run like any other says: a sample before it and one a second."""
    busy = [0.9, 0.8, 0.9, 0.7]
    later = [Sample(step=first + n, time=began + 1 + n, processor=busy[n % 4], memory=SIZE + n) for n in range(count)]
    return [Sample(step=first - 1, time=began, memory=SIZE // 4), *later]


def told(watched: Path, lines: list[ProcessStart | Sample | bytes]) -> None:
    content = [line if isinstance(line, bytes) else as_line(line) for line in lines]
    (watched / MONITOR).write_bytes(b"".join(content))


def start(folder: Path, **other: Any) -> ProcessStart:
    given = {"job": RunDirectory.open(folder).job.id.hex(), "step": 0, "time": BEGAN, "machine": {"cores": "2"}}
    return ProcessStart(**{**given, **other})


def found(folder: Path, now: float = BEGAN + 200, **more: Any) -> dict[str, Rule]:
    watch = RunMonitor(RunDirectory.open(folder), **more)
    watch.look(now)
    return {rule.name: rule for rule in watch.rules(now)}


def raised(rules: dict[str, Rule]) -> set[str]:
    return {name for name, rule in rules.items() if rule.standing is WorkerStanding.ALARM}


@pytest.fixture
def watched(parties: Parties, tmp_path: Path) -> Path:
    return parties.trained(tmp_path / "run")


Monitor = Callable[..., str]


@pytest.fixture
def monitor(command: Commands) -> Monitor:
    """What the command prints on stdout and stderr."""
    return lambda *arguments, code=0: "".join(command.printed("monitor", *arguments, code=code))


def test_a_run_killed_mid_line_resumes_without_an_alarm(parties: Parties, tmp_path: Path, monitor: Monitor) -> None:
    folder = parties.signed(tmp_path / "run")
    assert parties.train(folder, "--until", "3", "--monitor") == 0
    for name in (METRICS, MONITOR):
        with (folder / name).open("ab") as file:
            file.write(b'{"step": 4, "lo')
    assert parties.train(folder, "--monitor") == 0
    words = monitor(folder, "--states")
    assert f"losses       holds  {STEPS} losses of {STEPS} steps" in words
    assert f"heads        holds  {STEPS} losses are those that the trainer signed" in words
    assert "never a verdict" in words
    lines = [read_line(line) for line in (folder / MONITOR).read_bytes().splitlines() if not line.endswith(b"lo")]
    starts = [line for line in lines if isinstance(line, ProcessStart)]
    assert [line.step for line in starts] == [0, 3]
    assert starts[0].machine["cores"]
    document = json.loads(monitor(folder, "--once", "--json"))
    assert (document["alarm"], document["note"]) == (False, alarms.NOTE)
    assert [rule["rule"] for rule in document["rules"]] == [
        "losses", "utilisation", "memory", "heads", "rate", "silence", "lines",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_run_is_followed_while_it_is_trained(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "Sampler", lambda opened, device: Sampler(opened, device=device, interval=0.0))
    folder = parties.signed(tmp_path / "run")
    command = [sys.executable, "-m", "tiebreak", "monitor", str(folder), "--json", "--poll", "0.05"]
    with Popen(command, stdout=PIPE, text=True) as monitor:
        try:
            assert parties.train(folder, "--monitor", "--quiet") == 0
            words, _ = monitor.communicate(timeout=60)
        finally:
            monitor.kill()
    assert monitor.returncode == 0
    events = [json.loads(line) for line in words.splitlines()]
    steps = [event["step"] for event in events if event["event"] == "sample"]
    assert steps == list(range(STEPS + 1))
    assert events[-1]["event"] == "rules"
    assert not events[-1]["alarm"]


Change = Callable[[list[Any], Path], list[Any]]


def replaced(n: int, **other: Any) -> Change:
    return lambda lines, _: [*lines[:n], replace(lines[n], **other), *lines[n + 1 :]]


def raw(n: int, line: bytes) -> Change:
    return lambda lines, _: [*lines[:n], line + b"\n", *lines[n + 1 :]]


FORGED: dict[str, tuple[Change, str, str]] = {
    "another run's": (replaced(0, job="00" * 32), "lines", "line 1: expected lines of job"),
    "no start": (lambda lines, _: lines[1:], "lines", "expected the line of a start first"),
    "out of order": (replaced(4, step=0), "lines", "line 5: expected steps in order, got 0 after 2"),
    "back in time": (replaced(4, time=BEGAN - 60), "lines", "expected times in order, got one 62 s before"),
    "in the future": (replaced(8, time=BEGAN + 1e4), "lines", "expected a time that has been, got one 9800 s ahead"),
    "beyond the job": (replaced(8, step=STEPS + 1), "lines", "expected a step of 0 to 7, got 8"),
    "not JSON": (raw(3, b"pickle"), "lines", "line 4: expected a JSON object, got b'pickle'"),
    "a list": (raw(3, b"[1]"), "lines", "line 4: expected a JSON object, got b'[1]'"),
    "a truth": (raw(3, b'{"step": true, "time": 3}'), "lines", "expected a whole number as step, got True"),
    "huge": (raw(3, b"x" * 3_000_000), "lines", "line 4: expected at most 512 bytes, got more"),
    "negative": (raw(3, b'{"step": 2, "time": 3, "memory": -1}'), "lines", "expected memory of 0 to"),
    "above all": (raw(3, b'{"step": 2, "time": 3, "processor": 7}'), "lines", "expected processor of 0 to 1, got 7"),
    "beyond floats": (raw(3, b'{"step": 2, "time": ' + b"9" * 400 + b"}"), "lines", "expected time of 0 to"),
    "no time": (raw(3, b'{"step": 2}'), "lines", "expected a step and a time"),
    "words": (raw(3, b'{"step": 2, "time": 3, "loss_bits": "nice"}'), "lines", "expected loss_bits of 8 hex digits"),
    "a nicer loss": (replaced(8, loss_bits=0), "heads", "a sample of step 7: expected loss"),
    "long silence": (replaced(8, time=BEGAN + 190), "silence", "once nothing for 184 s, expected 180 s at most"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_monitor_lines_raise_the_matching_alarm(name: str, watched: Path) -> None:
    change, rule, words = FORGED[name]
    told(watched, change([start(watched), *steady(STEPS)], watched))
    rules = found(watched)
    assert rule in raised(rules), rules
    assert words in rules[rule].text


def test_a_forged_loss_curve_contradicts_the_signed_losses(watched: Path, monitor: Monitor) -> None:
    lines = [json.loads(line) for line in (watched / METRICS).read_text().splitlines()]

    def write(changed: list[Any]) -> None:
        (watched / METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in changed))

    write([line | {"loss": 0.5} if line["step"] == 6 else line for line in lines])
    words = monitor(watched, "--once", code=4)
    assert ("step 6: expected loss" in words, "which is signed, got 0.5" in words) == (True, True)
    write([line | {"loss": 0.5} if line["step"] == 2 else line for line in lines])
    assert raised(found(watched)) == set(), "a record binds the loss of its own step alone"
    assert "step 2: expected loss" in found(watched, states=True)["heads"].text
    write([*lines, lines[1] | {"loss": 0.25}])
    assert "expected one loss of step 2, however often computed" in found(watched)["heads"].text
    write(lines[:3] + lines[4:])
    assert found(watched)["losses"].text == "expected 7 losses, got 6"
    write([*lines, {"step": 8, "loss": 0.5}, {"step": 1 << 70, "loss": 0.5}])
    assert "expected a step of 1 to 7, got 8; " in found(watched)["lines"].text
    for bad in (0.1, 1e300, "0.5", 1, None):  # not FP32, or no number
        write([*lines, {"step": 5, "loss": bad}, {"step": 5, "loss": bad}])
        assert raised(found(watched)) == {"lines"}
    (watched / METRICS).unlink()
    assert found(watched)["losses"].standing is WorkerStanding.OPEN


LINES: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "out of order": (lambda m: [m[1], m[0], *m[2:]], "line 1: expected step 1, or one after a checkpoint, got 2"),
    "left out": (lambda m: [*m[:4], *m[5:]], "line 5: expected step 5, or one after a checkpoint, got 6"),
    "negative": (lambda m: [{**m[0], "step": -1}, *m], "line 1: expected a step of 1 to 7, got -1"),
    "NaN": (lambda m: [m[0], m[1] | {"loss": nan}, *m[2:]], "line 2: expected a finite loss of step 2, got nan"),
    "garbage between": (lambda m: [*m[:2], "x" * 3_000_000, *m[2:]], "line 3: expected a step and its FP32 loss"),
    "deep": (lambda m: [m[0], "[" * 400, *m[1:]], "line 2: expected a step and its FP32 loss"),
}


@pytest.mark.parametrize("name", LINES)
def test_impossible_metrics_lines_raise_an_alarm(name: str, watched: Path) -> None:
    change, words = LINES[name]
    lines = [json.loads(line) for line in (watched / METRICS).read_text().splitlines()]
    changed = [line if isinstance(line, str) else json.dumps(line) for line in change(lines)]
    (watched / METRICS).write_text("".join(f"{line}\n" for line in changed))
    assert words in found(watched)["lines"].text


def test_steps_may_restart_after_a_checkpoint(watched: Path) -> None:
    lines = (watched / METRICS).read_text().splitlines(keepends=True)
    for killed in ("", '{"step": 6, "lo\n'):
        (watched / METRICS).write_text("".join([*lines[:5], killed, *lines[3:]]))
        assert not raised(found(watched))


def test_mismatched_records_and_damaged_states_are_reported(watched: Path) -> None:
    opened = RunDirectory.open(watched)
    flip(opened.state_path(3))
    assert "the state after step 3 is withheld or damaged" in found(watched, states=True)["heads"].text
    records = bytearray((watched / "records.bin").read_bytes())
    records[20] ^= 1
    (watched / "records.bin").write_bytes(records)
    assert "records with the signed root" in found(watched)["heads"].text


def test_a_link_in_place_of_a_file_is_refused(watched: Path, tmp_path: Path, monitor: Monitor) -> None:
    secret = tmp_path / "secret"
    secret.write_text("{}\n")
    watch = RunMonitor(RunDirectory.open(watched))
    (watched / MONITOR).symlink_to(secret)
    with pytest.raises(EncodingError, match="symbolic link"):
        watch.look(BEGAN)
    monitor(watched, "--once", code=2)
    (watched / MONITOR).unlink()
    os.mkfifo(watched / MONITOR)
    with pytest.raises(VerificationError, match="a pipe"):
        watch.look(BEGAN)


def test_a_monitored_file_that_shrinks_or_is_replaced_is_reported(watched: Path) -> None:
    lines = [start(watched), *steady(STEPS)]
    for change in ("shrinks", "is exchanged"):
        told(watched, lines)
        watch = RunMonitor(RunDirectory.open(watched))
        assert len(watch.look(BEGAN + 20)) == STEPS + 1
        if change == "shrinks":
            told(watched, lines[:3])
        else:
            (watched / "other").write_bytes((watched / MONITOR).read_bytes() * 2)
            (watched / "other").rename(watched / MONITOR)
        assert not watch.look(BEGAN + 21)
        rules = {rule.name: rule for rule in watch.rules(BEGAN + 21)}
        assert f"{MONITOR}: expected a file that grows" in rules["lines"].text


def test_silence_is_an_alarm_while_a_run_is_trained(parties: Parties, tmp_path: Path) -> None:
    folder = parties.signed(tmp_path / "run")
    assert found(folder)["silence"].standing is WorkerStanding.OPEN
    told(folder, [start(folder), *steady(5)])
    last = BEGAN + 5
    assert not raised(found(folder, last + alarms.SILENCE))
    assert found(folder, last + alarms.SILENCE + 1)["silence"].text == "nothing for 181 s, expected 180 s at most"
    watch = RunMonitor(RunDirectory.open(folder))
    watch.look(last)
    with (folder / MONITOR).open("ab") as file:
        file.write(as_line(Sample(step=6, time=BEGAN + 6)))
    assert len(watch.look(last + 500)) == 1
    heard = {rule.name: rule for rule in watch.rules(last + 510)}
    assert heard["silence"].standing is WorkerStanding.HOLDS, "by our clock, not by the worker's"


def test_utilisation_memory_and_rate_rules_classify_samples() -> None:
    samples = steady(40)
    assert alarms.utilisation_rule(samples).standing is WorkerStanding.HOLDS
    assert alarms.utilisation_rule(samples[:9]).standing is WorkerStanding.OPEN
    lazy = [replace(sample, processor=0.9 if sample.step % 5 == 0 else 0.1) for sample in samples]
    assert alarms.utilisation_rule(lazy).text.endswith("expected 40%")
    always = [replace(sample, processor=1.0) for sample in samples]
    assert alarms.utilisation_rule(always).standing is WorkerStanding.HOLDS
    on_gpu = [replace(sample, gpu=0.9 if sample.step % 5 == 0 else 0.1) for sample in samples]
    assert "of the gpu" in alarms.utilisation_rule(on_gpu).text
    assert alarms.memory_rule(samples).standing is WorkerStanding.HOLDS
    assert alarms.memory_rule(samples[:9]).standing is WorkerStanding.OPEN
    growing = [replace(sample, memory=SIZE + sample.step * SIZE // 20) for sample in samples]
    flat = [replace(sample, memory=SIZE) for sample in samples]
    jumps = [replace(sample, memory=SIZE // 4) if sample.step == 30 else sample for sample in samples]
    for wrong in (growing, flat, jumps):
        assert alarms.memory_rule(wrong).standing is WorkerStanding.ALARM
    for seconds, standing in ((0.4, "ALARM"), (0.5, "holds"), (1.0, "holds"), (2.0, "holds"), (2.1, "ALARM")):
        assert alarms.rate_rule(samples, seconds).standing == standing
    assert alarms.rate_rule(samples[:5], 1.0).standing is WorkerStanding.OPEN
    assert alarms.losses_rule(3, 3, 7, is_over=False).standing is WorkerStanding.HOLDS
    assert alarms.losses_rule(3, 3, 7, is_over=True).standing is WorkerStanding.ALARM


def test_replayed_measurements_of_another_run_raise_no_alarm(watched: Path) -> None:
    """Why all of this is an alarm: the file of an idle machine that copies a busy one's holds by every rule."""
    opened = RunDirectory.open(watched)
    bits = {record.step: record.loss_bits for record in opened.records()}
    replayed = [
        replace(sample, step=(step := min(STEPS, sample.step // 5)), loss_bits=bits.get(step), time=sample.time + 5000)
        for sample in steady(40)
    ]  # of another run: its own losses, steps and times are made to fit
    told(watched, [start(watched, time=BEGAN + 5000), *replayed])
    rules = found(watched, BEGAN + 6000, states=True)
    assert not raised(rules)
    assert rules["rate"].standing is WorkerStanding.OPEN
    for name in ("losses", "utilisation", "memory", "heads", "silence", "lines"):
        assert rules[name].standing is WorkerStanding.HOLDS


class NVMLError(Exception):
    pass


def test_samples_are_throttled_and_include_gpu_readings(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = RunDirectory.open(parties.signed(tmp_path / "run"))

    def silent(_: object) -> None:
        raise NVMLError

    library = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=87),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=5 << 30), nvmlDeviceGetPowerUsage=silent,
    )  # fmt: skip
    card = SimpleNamespace(uuid="1234", name="A card")
    monkeypatch.setattr(sampling, "pynvml", library)
    monkeypatch.setattr(sampling.torch.cuda, "get_device_properties", lambda _: card)
    clock = SimpleNamespace(at=1000.0)
    steps = SimpleNamespace(monotonic=lambda: clock.at, time=lambda: BEGAN + clock.at, process_time=time.process_time)
    monkeypatch.setattr(sampling, "time", steps)
    sampler = Sampler(opened, device="cuda:0")
    progress = Progress(step=1, steps=7, loss=1.0, loss_bits=0x3F800000, seconds=0, resolving=0, waiting=0)
    began = clock.at
    for hours, tick, most in ((1, 0.25, 3000), (24, 2, 6500)):  # rarer than every second after 1,000 lines
        while clock.at < began + 3600 * hours:
            clock.at += tick
            sampler(progress)
        assert most / 2 < len((opened.path / MONITOR).read_bytes().splitlines()) < most
    lines = [read_line(line) for line in (opened.path / MONITOR).read_bytes().splitlines()]
    first, last = lines[0], lines[-1]
    assert isinstance(first, ProcessStart)
    assert first.machine["gpu"] == "A card"
    assert isinstance(last, Sample)
    samples = [line for line in lines if isinstance(line, Sample)]
    assert alarms.silence_rule(samples, 0, 0, is_over=True).standing is WorkerStanding.HOLDS, "rarer is not silent"
    assert (last.gpu, last.gpu_memory, last.watts, last.loss_bits) == (0.87, 5 << 30, None, 0x3F800000)


def test_monitoring_without_its_extra_names_the_extra(
    parties: Parties, watched: Path, command: Commands, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("tiebreak.api.sampling")
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "tiebreak.api.watching.sampling")
    train = ["train", watched, "--key", parties.path("trainer.pem"), "--monitor"]
    assert "pip install 'tiebreak[monitor]'" in command.error(*train)
    monitor(watched, "--once")  # reading needs no extra
