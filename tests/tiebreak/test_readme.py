"""The README's example is a task that captures."""

import re
from pathlib import Path

from tests.source_tree import ROOT
from tiebreak.api.bundle import load_bundle
from tiebreak.cli.main import run, tiebreak


def test_the_example_captures(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_task.py").write_text(example)
    assert run(tiebreak, ["capture", str(tmp_path / "my_task.py"), "--output", str(tmp_path / "out")]) == 0
    assert load_bundle(tmp_path / "out").name == "regression"


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert len(links) >= 6
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_decisions_are_listed_and_numbered() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\[(\d{4})\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert [f"{i:04}" for i in range(1, len(listed) + 1)] == [number for number, _ in listed]
    assert sorted(p.name for p in folder.glob("0*.md")) == [name for _, name in listed]
