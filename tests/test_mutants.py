"""The list of small changes of the product, and its runner; `make nightly` tries them all."""

import json
from pathlib import Path

import pytest

from tests.conftest import CaseCounter
from tests.engine.processes import printed
from tests.mutants import ROOT, Mutant, mutants

TRY = """
import json, sys
from pathlib import Path
from tests.mutants import Mutant, copied, killer

disk, tests = "tiebreak/engine/data/disk.py", "tests/security/test_run_directory.py -k takes_its_limit"
at_limit, above = "    if stamp.size > limit:", "    if stamp.size > limit + 1:"
dies = Mutant(name="dies", file=disk, old=at_limit, new=above, tests=tests)
lives = Mutant(name="lives", file=disk, old=at_limit, new="    if limit < stamp.size:", tests=tests)
breaks = Mutant(name="breaks", file=disk, old=at_limit, new="    if", tests=tests)
with copied(Path(sys.argv[1])) as tree:
    found = [killer(dies, tree), killer(lives, tree), killer(dies, tree)]
    try:
        killer(breaks, tree)
    except ValueError as error:
        found.append(str(error).split(":")[0])
print(json.dumps(found))
"""


def test_each_mutant_changes_a_text_that_the_product_has_once(cases: CaseCounter) -> None:
    found = mutants()
    for mutant in found:
        mutant.check()
        for test in mutant.tests.split():
            assert not test.startswith("tests/") or (ROOT / test.split("::")[0]).is_file(), mutant.name
        cases()
    assert len({mutant.name for mutant in found}) == len(found)


def test_a_mutant_whose_text_is_gone_is_named() -> None:
    gone = Mutant(name="of another time", file="Makefile", old="no such text", new="", tests="")
    with pytest.raises(
        ValueError, match="of another time: expected a text that Makefile has once, got one that it has 0"
    ):
        gone.check()


@pytest.mark.slow
def test_a_mutant_dies_by_a_failing_test_and_lives_without_one(tmp_path: Path) -> None:
    test = "tests/security/test_run_directory.py::test_read_file_takes_its_limit_exactly"
    found = json.loads(printed("-c", TRY, str(tmp_path / "tree")))
    assert found == [test, "", test, "expected tests that run, got 2"]
