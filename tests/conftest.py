"""No vacuous green: how many cases ran, which skips were expected, and a floor under both (`--full`).

A test that loops over cases takes the fixture `cases` and reports each; one that ends without a case fails. A skip
whose reason is not listed here fails the run. The suite comes in two parts: `make test` runs the fast one and
`make test-all` the tests marked `slow`. In a full run of a part (`--full`) every folder must reach the number of
passed tests that `floors.json` gives for it, every test file of that part must have run, and no test may take more
processor time than its part allows.
"""

import gc
import json
import os
import re
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

# Before torch is imported anywhere: two workers on two cores must not fight over them, and threads that wait for each
# other must not spin. Tests that are about threads set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# jsonschema loads it, a second of grammars, to check names in a format that no schema here has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# No test asserts a time, Hypothesis' deadline included. A gate tries the same examples every time; by hand, new ones.
settings.register_profile(
    "tiebreak", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tiebreak")

ROOT = Path(__file__).resolve().parent.parent
FLOORS = Path(__file__).with_name("floors.json")
EXPECTED_SKIPS = tuple(
    re.compile(reason)
    for reason in (
        r"needs a CUDA device",
        r"needs a CPU with avx(2|512)",
        r"needs a C compiler",
        r"needs anvil",
        r"needs bitsandbytes",
        r"needs PostgreSQL",
        r"needs recheck\.wasm, which make wasm builds",
        r"needs Triton, of the extra gpu",
        r"needs the vectors of Computation Receipts",
    )
)
"""Reasons, whole, with which a test may be skipped. Add one only for what a machine may honestly lack."""


BUDGETS = {"fast": 5.0, "slow": 60.0}
"""Seconds of processors that one test, or the fixtures made for it, may take in a part, on an idle AMD EPYC."""
COUNTING = 0.011
"""Seconds in which that machine counts to a million."""
NOISE = 2.0
"""How many times its budget fails a test: what else runs on the same core may double what it uses."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--full`."""
    parser.addoption("--full", action="store_true", help="a whole part: check floors.json and that every file ran")


WAITING = ROOT / "tests" / "tiebreak" / "node"


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Points XDG_STATE_HOME to the temporary folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        yield


class CaseCounter:
    """Counts the cases of one test."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, count: int = 1) -> None:
        self.count += count


@pytest.fixture
def cases(record_property: Callable[[str, object], None]) -> Iterator[CaseCounter]:
    """Call once per case (or with their number). A test that used it and reported none fails."""
    counter = CaseCounter()
    yield counter
    assert counter.count > 0, "expected at least one case, got none"
    record_property("cases", counter.count)


@pytest.fixture(scope="session")
def once(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Callable[[str, Callable[[Path], object]], Path]:
    """`once(name, make)`: a folder that one worker of this test run fills with `make(folder)` and all share, read only.

    `make` gets a path that does not exist yet and creates it. Name it after everything that its contents depend on.
    """
    shared = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        shared = shared.parent

    def make_once(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / "once" / name, shared / "once" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make(folder)
                done.touch()
        return folder

    return make_once


def processor_seconds() -> float:
    """Processor seconds that this process and its finished children have used: other load hardly changes them."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def slowness() -> float:
    """How many times slower than the machine of `BUDGETS` this one counts now; 1 where it is faster."""

    def count() -> float:
        start = time.process_time()
        for _ in range(1_000_000):
            pass
        return time.process_time() - start

    return max(1.0, min(count() for _ in range(3)) / COUNTING)


USED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Begin to count what a test uses."""
    item.stash[USED] = processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Attach to each phase of a test the processor seconds that it used, scaled to the machine of `BUDGETS`."""
    report = yield
    used = processor_seconds() - item.stash.get(USED, 0.0)
    report.processor_seconds = used / slowness() if used > min(BUDGETS.values()) else used
    item.stash[USED] = processor_seconds()
    return report


class Ledger:
    """What ran, collected where the reports of all workers arrive."""

    def __init__(self, part: str | None) -> None:
        """part: the part of the suite that runs as a whole, `fast` or `slow`."""
        self.part = part
        self.passed: Counter[str] = Counter()
        self.lacking: Counter[str] = Counter()
        self.files: set[str] = set()
        self.cases = 0
        self.seconds: list[tuple[float, str]] = []
        self.unexpected: list[str] = []
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        file = report.nodeid.split("::")[0]
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            if any(pattern.fullmatch(reason) for pattern in EXPECTED_SKIPS):
                self.lacking[folder_of(file)] += 1
            else:
                self.unexpected.append(f"{report.nodeid}: {reason}")
            self.files.add(file)
        if report.when == "call":
            self.files.add(file)
            if report.passed:
                self.passed[folder_of(file)] += 1
        used = getattr(report, "processor_seconds", 0.0)  # a worker that crashed tells nothing
        self.seconds.append((used, f"{report.nodeid} ({report.when})"))
        if report.when == "teardown":
            self.cases += sum(int(value) for name, value in report.user_properties if name == "cases")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module skipped as a whole is a skip like any other."""
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.unexpected.append(f"{report.nodeid}: {reason}")

    def check(self, exitstatus: int) -> int:
        """The exit status after the checks; fills `problems`."""
        self.problems = [f"unexpected skip: {line}" for line in self.unexpected]
        if self.part is not None:
            self.problems += floor_problems(self.passed, self.lacking, json.loads(FLOORS.read_text())[self.part])
            ran = {(ROOT / file).resolve() for file in self.files}
            self.problems += [
                f"no test of {path.relative_to(ROOT)} ran"
                for path in sorted(ROOT.glob("tests/**/test_*.py"))
                if path not in ran and part_of(path) == self.part
            ]
            budget = BUDGETS[self.part]
            self.problems += [
                f"expected at most {budget:.1f} s of processors, got {used:.1f} s in {what}"
                for used, what in sorted(self.seconds, reverse=True)
                if used > budget * NOISE
            ]
        return 1 if self.problems and exitstatus in (0, 5) else exitstatus

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn an empty green into red."""
        session.exitstatus = self.check(int(exitstatus))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how much ran."""
        folders = ", ".join(f"{name} {count}" for name, count in sorted(self.passed.items()))
        for used, what in sorted(self.seconds, reverse=True)[:10]:
            terminalreporter.write_line(f"{used:6.1f} s of processors: {what}")
        terminalreporter.write_line(f"passed by folder: {folders or 'none'}; counted cases: {self.cases}")
        for problem in self.problems:
            terminalreporter.write_line(f"NOT GREEN: {problem}", red=True)


def folder_of(file: str) -> str:
    """The folder directly below tests/, or `.` for a file there."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else "."


def part_of(path: Path) -> str:
    """The part of the suite in which a file must run: a file may mark single tests as slow, or itself."""
    return "slow" if re.search(r"^pytestmark = .*\bmark\.slow\b", path.read_text(), re.MULTILINE) else "fast"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Saves the fast part the imports of files that are slow as a whole."""
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    fast = config.option.markexpr == "not slow and not nightly"
    return True if fast and is_test and part_of(collection_path) == "slow" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins both halves of the slow part with tests of parties, which mostly wait.

    Each of xdist's workers gets a piece of the list. In the order of the folders, the last ones would wait at the end,
    when nothing is left to compute meanwhile.
    """
    if config.option.markexpr != "slow and not nightly":
        return
    hands: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    others = []
    for number, (path, group) in enumerate(groupby(items, key=lambda item: item.path)):
        (hands[number % 2] if path.is_relative_to(WAITING) else others).extend(group)
    first = max(0, len(items) // 2 - len(hands[0]))
    items[:] = [*hands[0], *others[:first], *hands[1], *others[first:]]


def floor_problems(passed: Counter[str], lacking: Counter[str], floors: dict[str, int]) -> list[str]:
    """Folders in which fewer tests passed than their floor says, and folders without a floor.

    lacking: how many were skipped for what the machine lacks. A floor is that of a machine that lacks nothing.
    """
    short = [
        f"expected at least {floor - lacking[name]} passed tests in {name}, got {passed[name]}"
        for name, floor in floors.items()
        if passed[name] + lacking[name] < floor
    ]
    return short + [f"no floor in floors.json for folder {name}" for name in sorted(set(passed) - set(floors))]


def pytest_configure(config: pytest.Config) -> None:
    """One ledger, where reports arrive; one thread per worker so that workers do not starve each other."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    gc.disable()
    if not hasattr(config, "workerinput"):
        part = "slow" if config.option.markexpr == "slow and not nightly" else "fast"
        config.pluginmanager.register(Ledger(part if config.getoption("--full") else None), "ledger")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collects garbage from here on, seldom, and passes over modules and tests, which stay: that saves much time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
