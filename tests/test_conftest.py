"""The checks of conftest.py: too few tests, unexpected skips and files that did not run fail a run."""

import json
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).with_name("conftest.py")
PASSING = "import pytest\ndef test_a():\n    assert 1 + 1 == 2\n"
SLOW = PASSING + "pytestmark = pytest.mark.slow\n"
LACKING = PASSING + "def test_b():\n    pytest.skip('needs anvil')\n"
NOTHING = "def helper():\n    pass\n"
NONE_RAN = "NOT GREEN: no test of tests/sub/test_it.py ran"


@pytest.mark.parametrize(
    ("source", "part", "floor", "status", "line"),
    [
        (PASSING, "fast", 1, 0, "passed by folder: sub 1; counted cases: 0"),
        (PASSING, "fast", 2, 1, "NOT GREEN: expected at least 2 passed tests in sub, got 1"),
        (PASSING, "fast", None, 1, "NOT GREEN: no floor in floors.json for folder sub"),
        (NOTHING, "fast", 0, 1, NONE_RAN),
        (SLOW, "fast", None, 5, "passed by folder: none; counted cases: 0"),
        (SLOW, "slow", 1, 0, "passed by folder: sub 1; counted cases: 0"),
        (SLOW.replace("def test_a", "def helper"), "slow", 0, 1, NONE_RAN),
        ("import pytest\ndef test_a():\n    pytest.skip('later')\n", "fast", 0, 1, "NOT GREEN: *skip: *later"),
        ("import pytest\npytest.skip('later', allow_module_level=True)\n", "fast", 0, 1, "NOT GREEN: *skip: *later"),
        ("import pytest\ndef test_a():\n    pytest.skip('needs a CUDA device')\n", "fast", 0, 0, "*; counted cases: 0"),
        (LACKING, "fast", 2, 0, "passed by folder: sub 1; counted cases: 0"),
        (LACKING, "fast", 3, 1, "NOT GREEN: expected at least 2 passed tests in sub, got 1"),
        ("def test_a(cases):\n    cases()\n    cases(2)\n", "fast", 1, 0, "passed by folder: sub 1; counted cases: 3"),
        ("def test_a(cases):\n    pass\n", "fast", 0, 1, "*expected at least one case, got none*"),
    ],
)
def test_pytest_run_is_green_only_with_enough_tests_and_cases(
    pytester: pytest.Pytester, source: str, part: str, floor: int | None, status: int, line: str
) -> None:
    """Run `source` as tests/sub/test_it.py below a copy of the conftest."""
    folder = pytester.mkdir("tests") / "sub"
    folder.mkdir()
    (folder / "test_it.py").write_text(source)
    (folder.parent / "conftest.py").write_text(CONFTEST.read_text())
    (folder.parent / "floors.json").write_text(json.dumps({part: {} if floor is None else {"sub": floor}}))
    pytester.makeini("[pytest]\nmarkers =\n slow\n nightly\n")
    marked = {"fast": "not slow and not nightly", "slow": "slow and not nightly"}[part]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-m", marked, "tests", "--full")
    assert result.ret == status
    result.stdout.fnmatch_lines([line])
