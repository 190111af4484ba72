"""The generated bindings: what is checked in is what the artifacts say, against the ABI as the compiler wrote it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_hash.auto import keccak

from tests.source_tree import ROOT
from tiebreak.protocol.chain import bindings as chain_bindings
from tiebreak.protocol.chain import generated as g
from tiebreak.protocol.chain.abi import Signed
from tiebreak.protocol.chain.artifacts import CONTRACTS, load_artifact
from tiebreak.protocol.chain.bindings import camel_case, enum_members, generate, main, snake_case
from tiebreak.protocol.errors import ConfigurationError


def test_the_bindings_are_those_of_the_artifacts() -> None:
    assert main(["--check"]) == 0


def canonical(field: dict[str, Any]) -> str:
    """A type as selectors have it, written without the code under test."""
    if not field["type"].startswith("tuple"):
        return str(field["type"])
    return "(" + ",".join(map(canonical, field["components"])) + ")" + field["type"][5:]


def test_every_selector_and_field_is_the_compilers(cases: Callable[..., None]) -> None:
    known: dict[tuple[str, str], type[Signed]] = {
        **{("function", call.NAME): call for call in g.FUNCTIONS},
        **{("event", log.NAME): log for log in g.EVENTS},
        **{("error", refusal.NAME): refusal for refusal in g.ERRORS},
    }
    seen = set()
    for contract in CONTRACTS:
        for entry in load_artifact(contract).abi:
            if entry["type"] == "constructor":
                continue
            found = known[entry["type"], entry["name"]]
            signature = f"{entry['name']}({','.join(map(canonical, entry['inputs']))})"
            assert found.topic() == keccak(signature.encode())
            assert [camel_case(name) for name in found.kinds()] == [field["name"] for field in entry["inputs"]]
            if entry["type"] == "event":
                indexed = tuple(snake_case(field["name"]) for field in entry["inputs"] if field["indexed"])
                assert indexed == found.INDEXED  # type: ignore[attr-defined]
            seen.add((entry["type"], entry["name"]))
            cases()
    assert seen == set(known)
    assert len(seen) > 100


def test_what_is_stale_or_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    target = tmp_path / "generated.py"
    monkeypatch.setattr(chain_bindings, "TARGET", target)
    for content in (None, "stale"):
        if content is not None:
            target.write_text(content)
        assert main(["--check"]) == 1
        assert "run python -m tiebreak.protocol.chain.bindings" in capsys.readouterr().err
    assert main([]) == 0
    assert target.read_text() == generate()
    assert main(["--check"]) == 0


def test_the_generator_runs_without_the_adapter(tmp_path: Path) -> None:
    """It must: what it writes may be broken, and the adapter with it."""
    code = (
        "import sys; sys.modules['tiebreak.protocol.chain'] = None\n"
        "from tiebreak.protocol.chain.bindings import generate; print(len(generate()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) == len(generate())


FIELD = {"name": "a", "type": "uint64", "internalType": "uint64"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([{**FIELD, "name": ""}], "expected a field with a name in camel case, got ''"),
        ([{**FIELD, "name": "from"}], "got 'from'"),
        ([{**FIELD, "name": "snake_case"}], "got 'snake_case'"),
    ],
)
def test_names_that_python_cannot_have_are_refused(inputs: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        chain_bindings.Bindings().add_contract("C", [{"type": "error", "name": "E", "inputs": inputs}])


def test_two_things_of_one_name_are_refused() -> None:
    bindings = chain_bindings.Bindings()
    entry = {"type": "error", "name": "E", "inputs": [FIELD]}
    bindings.add_contract("C", [entry])
    bindings.add_contract("D", [entry])  # the same error in two contracts is one
    with pytest.raises(ConfigurationError, match="declared in two ways"):
        bindings.add_contract("F", [{**entry, "inputs": [{**FIELD, "type": "uint32"}]}])
    assert bindings.text().count("class EError(Refusal)") == 1


def test_an_enum_must_stand_in_its_interface() -> None:
    assert enum_members("IGame.Level") == {"RUN": 0, "STEPS": 1, "VALUES": 2, "CHUNKS": 3, "TERMS": 4}
    with pytest.raises(ConfigurationError, match=r"expected enum Shape in IGame\.sol"):
        enum_members("IGame.Shape")


def test_artifacts_are_the_named_contracts() -> None:
    """Examples have artifacts too, but no bindings."""
    names = {path.stem for path in (ROOT / "contracts" / "artifacts").glob("*.json")}
    assert set(CONTRACTS) <= names
    for name in names:
        assert set(json.loads((ROOT / "contracts" / "artifacts" / f"{name}.json").read_text())) >= {"abi", "bytecode"}
