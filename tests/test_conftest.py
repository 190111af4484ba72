"""The guard against vacuous green guards."""

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).with_name("conftest.py")


def run(
    pytester: pytest.Pytester, source: str, *args: str, floors: dict[str, int] | None = None, part: str = "fast"
) -> pytest.RunResult:
    """Run `source` as tests/sub/test_it.py below a copy of the conftest."""
    folder = pytester.mkdir("tests") / "sub"
    folder.mkdir()
    (folder / "test_it.py").write_text(source)
    (folder.parent / "conftest.py").write_text(CONFTEST.read_text())
    (folder.parent / "floors.json").write_text(json.dumps({part: floors or {}}))
    pytester.makeini("[pytest]\nmarkers = slow\n")
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-m", MARKED[part], "tests", *args)


MARKED = {"fast": "not slow", "slow": "slow"}
PASSING = "def test_a():\n    assert 1 + 1 == 2\n"


def test_green_stays_green(pytester: pytest.Pytester) -> None:
    result = run(pytester, PASSING, "--full", floors={"sub": 1})
    assert result.ret == 0
    result.stdout.fnmatch_lines(["passed by folder: sub 1; counted cases: 0"])


@pytest.mark.parametrize(("floors", "message"), [({"sub": 2}, "expected at least 2"), ({}, "no floor")])
def test_floor(pytester: pytest.Pytester, floors: dict[str, int], message: str) -> None:
    result = run(pytester, PASSING, "--full", floors=floors)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"NOT GREEN: {message}*"])


def test_a_file_of_which_nothing_ran(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def helper():\n    pass\n", "--full", floors={"sub": 0})
    assert result.ret == 1
    result.stdout.fnmatch_lines(["NOT GREEN: no test of tests/sub/test_it.py ran"])


SLOW_FILE = "import pytest\n\npytestmark = pytest.mark.slow\n" + PASSING


@pytest.mark.parametrize(("part", "status"), [("fast", 5), ("slow", 0)])
def test_a_slow_file_runs_in_the_slow_part_alone(pytester: pytest.Pytester, part: str, status: int) -> None:
    floors = {"sub": 1} if part == "slow" else {}
    assert run(pytester, SLOW_FILE, "--full", floors=floors, part=part).ret == status


def test_a_slow_file_of_which_nothing_ran(pytester: pytest.Pytester) -> None:
    source = SLOW_FILE.replace("def test_a", "def helper")
    result = run(pytester, source, "--full", floors={"sub": 0}, part="slow")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["NOT GREEN: no test of tests/sub/test_it.py ran"])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import pytest\ndef test_a():\n    pytest.skip('later')\n", 1),
        ("import pytest\npytest.skip('later', allow_module_level=True)\n", 1),
        ("import pytest\n@pytest.mark.skip(reason='needs a CUDA device')\ndef test_a():\n    pass\n", 0),
    ],
)
def test_skips(pytester: pytest.Pytester, source: str, expected: int) -> None:
    assert run(pytester, source).ret == expected


def test_cases_are_counted(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_a(cases):\n    cases()\n    cases(2)\n")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["passed by folder: sub 1; counted cases: 3"])


def test_no_case_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, "def test_a(cases):\n    pass\n")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*expected at least one case, got none*"])
