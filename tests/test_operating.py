"""What operators are given: containers, units and a page. None of it may name what is not there."""

import re
from collections.abc import Callable

import pytest
import yaml  # type: ignore[import-untyped]

from tests.source_tree import ROOT
from tiebreak.cli.main import COMMANDS

UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
ALARMS = [
    *(ROOT / "tiebreak/protocol/parties").glob("*.py"),
    *(ROOT / "tiebreak/engine/data").glob("*.py"),
    *(ROOT / "tiebreak/node").glob("*.py"),
]


def test_commands_on_the_page_exist(cases: Callable[[], None]) -> None:
    for command in re.findall("`tiebreak (\\w+)", (ROOT / "docs" / "operate.md").read_text()):
        assert command in {*COMMANDS, "up", "client", "trainer", "auditor", "watch"}
        cases()


def test_services_run_what_they_are_named_after() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert set(services) == {"chain", "hub", "client", "trainer", "trainer-cuda", "auditor"}
    assert services["trainer-cuda"]["gpus"] == "all"
    assert services["trainer-cuda"]["profiles"] == ["gpu"], "only on request"
    for name, service in services.items():
        if name != "chain":
            assert service["command"][0] == name.removesuffix("-cuda")
            assert service["cap_drop"] == ["ALL"]
            assert [volume.split(":")[1] for volume in service["volumes"]] == ["/party"]


@pytest.mark.parametrize("file", ["Dockerfile", "Dockerfile.cuda"])
def test_containers_carry_what_the_package_needs(file: str) -> None:
    copied = re.findall(r"^COPY (?!--)(.*)$", (ROOT / file).read_text(), flags=re.MULTILINE)
    sources = [source for line in copied for source in line.split()[:-1]]
    assert len(sources) >= 8
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed, f"{source} is kept out of the context"


def test_units_run_what_they_are_named_after(cases: Callable[[], None]) -> None:
    assert len(UNITS) == 3
    for unit in UNITS:
        text = unit.read_text()
        (command,) = re.findall(r"^ExecStart=/usr/local/tiebreak/bin/tiebreak (\w+) ", text, flags=re.MULTILINE)
        assert unit.stem == f"tiebreak-{command}"
        assert "Restart=always" in text
        assert "TIEBREAK_PASSPHRASE=" not in re.sub("#.*", "", text), "a unit is readable by all"
        cases()


def test_alarms_that_the_page_explains_are_raised(cases: Callable[[], None]) -> None:
    """Each quoted text stands in the source, as the part of a message that is always the same."""
    table = (ROOT / "docs" / "operate.md").read_text().split("## Alarms")[1].split("Metrics worth")[0]
    sources = "".join(path.read_text() for path in ALARMS)
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")]
    quoted = [text for row in rows for text in re.findall("`([^`]+)`", row)]
    assert len(quoted) >= 12
    for text in quoted:
        assert text in sources, text
        cases()
