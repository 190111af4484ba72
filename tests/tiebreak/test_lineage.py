"""Lineages: a base, an adapter trained on it, and one that goes on with that, followed by their certificates."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

import tiebreak
from tests.engine.tiny import CLIENT, TRAINER
from tests.protocol.certified import PREFIX, certificate, envelope
from tests.tiebreak.parties import Commands, Once
from tests.tiebreak.test_adapters import KEYS, lora, perceptron, regression
from tiebreak import ConfigurationError, VerificationError
from tiebreak.api.certification.certificates import LineageLink, read_certificate, read_weights, verify_lineage
from tiebreak.api.certification.issuance import certify
from tiebreak.api.certification.lineage import ends, lines
from tiebreak.api.chain.weights import write_weights
from tiebreak.engine.run.directory import RunDirectory
from tiebreak.protocol.commitments.certificate import Weights
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.commitments.records import state_tree
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.tags import Digest

OTHER = PrivateKey.from_int(77)


def loaded(folder: Path, name: str = "base") -> nn.Sequential:
    model = perceptron()
    model.load_state_dict(load_file(folder / name / "model.safetensors"))
    return model


def stage(folder: Path, name: str, model: nn.Module) -> None:
    """Trains a model, and certifies what it becomes: `name`, from a run beside it, by `name`.json."""
    run = tiebreak.train(regression(model), folder / f"{name}-run", **KEYS)
    if isinstance(model, PeftModel):
        model.load_state_dict(run.state_dict())
        model.save_pretrained(folder / name)
    else:
        (folder / name).mkdir(exist_ok=True)
        write_weights(run.directory, folder / name / "model.safetensors")
    certify(RunDirectory.open(run.directory), folder / name, folder / f"{name}.json", TRAINER)


def make(folder: Path) -> None:
    stage(folder, "base", perceptron())
    stage(folder, "sft", get_peft_model(loaded(folder), lora(target_modules=["0"], modules_to_save=["2"])))
    stage(folder, "dpo", PeftModel.from_pretrained(loaded(folder), folder / "sft", is_trainable=True))
    stage(folder, "next", loaded(folder))  # a whole model goes on
    stage(folder, "moved", PeftModel.from_pretrained(loaded(folder, "next"), folder / "sft", is_trainable=True))


@pytest.fixture
def chain(once: Once, tmp_path: Path) -> Path:
    """base, sft on it, dpo from sft, next from base, moved from sft on next, and their certificates."""
    return shutil.copytree(once("chain", make), tmp_path / "chain")


def follow(chain: Path, model: str, *bases: str, by: tuple[str, ...] = ()) -> list[LineageLink]:
    certificates = [chain / f"{name}.json" for name in by]
    return verify_lineage(chain / model, chain / f"{model}.json", [chain / b for b in bases], certificates)


def test_a_lineage_is_followed_from_dpo_over_sft_to_the_base(chain: Path, command: Commands) -> None:
    certify(RunDirectory.open(chain / "base-run"), chain / "base", chain / "base.json", CLIENT)
    given = ["verify", chain / "dpo", chain / "dpo.json", "--base", chain / "base", "--base", chain / "sft"]
    plain = command(*given)
    assert f"{chain / 'base'} is the base that these adapters were trained on" in plain
    assert f"{chain / 'sft'} is what the run started from: its first state has these tensors in the same" in plain
    assert "Lineage" not in plain
    given += ["--base-certificate", chain / "base.json", "--base-certificate", chain / "sft.json"]
    certificates = [read_certificate(chain / f"{name}.json").certificate for name in ("dpo", "sft", "base")]
    jobs = [certificate.job.id.hex() for certificate in certificates]
    roots = [certificate.start.root.hex() for certificate in certificates if certificate.start is not None]
    trainer, client = f"0x{TRAINER.address.hex()}", f"0x{CLIENT.address.hex()}"
    told = command(*given, "--require", client, code=2)
    assert f"dpo.json: expected a signature by {client}, got none" in told, "base.json has one"
    agreed = f"what the client {client} and the trainer {trainer} agreed on."
    assert (
        command(*given)
        == f"""{plain}
Lineage:
  1. {chain / "dpo"}: job {jobs[0]}, signed by trainer {trainer}; started from 2; trained on 3.
  2. {chain / "sft"}: job {jobs[1]}, signed by trainer {trainer}; trained on 3.
  3. {chain / "base"}: job {jobs[2]}, signed by trainer {trainer}, client {client}.

Where it ends in somebody's word:
  - 1: What else the first state has, such as moments, is {agreed}
  - 2: The first weights of root {roots[1]}, drawn at random or from elsewhere, are {agreed}
  - 3: The first weights of root {roots[2]}, drawn at random or from elsewhere, are {agreed}
  - That each run was computed as agreed: its signers say so, and an audit finds out.
"""
    )
    found = command.tell(*given)
    assert (found["start"], found["lineage"][0]["start"], found["lineage"][1]["base"]) == (roots[0], 2, 3)
    assert [one["by"] for one in found["lineage"][2]["signatures"]] == ["trainer", "client"]


def test_a_lineage_says_where_it_ends_for_want_of_files(chain: Path) -> None:
    said = lines(follow(chain, "dpo", "sft", "base", by=("sft",)), [OTHER.address])
    assert f"  3. {chain / 'base'}: no certificate was given." in said
    assert "  - 3: Where these weights are from is nobody's word, without a certificate." in said
    assert "; by nobody whom you require; started from 2; trained on 3." in said[2]
    for link in follow(chain, "dpo", "sft", by=("sft",)):
        assert link.signed is not None
        assert link.signed.certificate.adapter is not None
        root = link.signed.certificate.adapter.root.hex()
        assert ends(link)[1] == f"The base has the root {root}: the signers say so."


def test_an_adapter_that_moved_to_another_base_shows_both(chain: Path) -> None:
    links = follow(chain, "moved", "base", "sft", "next", by=("base", "sft", "next"))
    moved, sft, following, base = links
    assert [link.folder.name for link in links] == ["moved", "sft", "next", "base"]
    assert (moved.origins, sft.origins) == ({"start": sft, "base": following}, {"base": base})
    assert (following.origins, base.origins) == ({"start": base}, {})


def altered(path: Path) -> None:
    """Adds one to an element of a tensor."""
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, path)


BASE, SFT = "base/model.safetensors", "sft/adapter_model.safetensors"
Case = tuple[Callable[[Path], object], tuple[str, ...], tuple[str, ...], str]
HOSTILE: dict[str, Case] = {
    "a base of no use": (Path, ("sft", "base", "next"), (), "next: expected .* got others: base: expected tensors"),
    "a base twice": (Path, ("sft", "base", "base"), (), "base: expected .* once, got others: it is given twice"),
    "the model itself": (Path, ("dpo", "dpo"), (), "weights that training changed, got those that it ended with"),
    "another start": (Path, ("dpo", "base", "moved"), (), "moved: .* start: expected tensors under state root"),
    "the child of it": (Path, ("sft", "base", "dpo"), (), "dpo: .* start: expected tensors under state root"),
    "an adapter for a model": (Path, ("next", "sft"), (), "sft: .* start: expected tensors under state root"),
    "another certificate": (Path, ("sft", "base"), ("next",), "base: weights: expected tensors under state root"),
    "its own certificate": (Path, ("sft", "base"), ("sft",), "base: expected the folder of an adapter"),
    "a changed base": (lambda f: altered(f / BASE), ("sft", "base"), (), "base: expected tensors under"),
    "a changed start": (lambda f: altered(f / SFT), ("dpo", "sft"), (), "start: expected tensors under"),
    "changed weights": (lambda f: altered(f / SFT), ("dpo", "sft"), ("sft",), "sft: weights: expected tensors under"),
    "code": (lambda f: (f / "base" / "code.py").touch(), ("dpo", "base"), ("base",), "weights or code, got 'code.py'"),
    "a file": (lambda f: (f / "sft" / "x.json").touch(), ("dpo", "sft"), ("sft",), "'x.json, which nobody signed for'"),
    "bytes": (
        lambda f: save_file(load_file(f / BASE), f / BASE, {"a": "b"}), ("sft", "base"), ("base",), "pass --resaved"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_lineage_that_does_not_hold_is_refused(chain: Path, case: str) -> None:
    change, models, certificates, said = HOSTILE[case]
    change(chain)
    with pytest.raises(VerificationError, match=said):
        follow(chain, *models, by=certificates)


def test_certificates_lie_in_the_folders_of_their_weights_and_none_is_left_over(chain: Path) -> None:
    for name in ("sft", "base"):
        (chain / f"{name}.json").rename(chain / name / "certificate.json")
    follow(chain, "dpo", "sft", "base", by=("sft/certificate", "base/certificate"))
    with pytest.raises(ConfigurationError, match="expected a --base for each --base-certificate, got 1"):
        follow(chain, "dpo", "sft", by=("sft/certificate", "base/certificate"))


def test_a_cosigner_compares_the_start_with_its_own_run(chain: Path) -> None:
    run, path = RunDirectory.open(chain / "dpo-run"), chain / "dpo.json"
    made = read_certificate(path).certificate
    assert made.start is not None
    false = replace(made.start, root=Digest(bytes(32)))
    for start in (false, replace(made.start, nodes=(Digest(bytes(32)), *made.start.nodes[1:])), None):
        path.write_bytes(sign(Envelope(payload=replace(made, start=start).payload), TRAINER).encode())
        with pytest.raises(VerificationError, match="start: expected" if start else "got an older one"):
            follow(chain, "dpo", "sft")
        with pytest.raises(VerificationError, match="expected the start of the run in") if start else nullcontext():
            certify(run, chain / "dpo", path, CLIENT)
    assert ends(follow(chain, "dpo", "base")[0])[0].startswith("The first weights, drawn at random or from elsewhere")


def invented(folder: Path, name: str, value: float, before: float) -> None:
    """Weights that are one number, and a certificate of theirs by a trainer that lies: no run made them of another."""
    ids = []
    (folder / name).mkdir()
    for number in (before, value):
        save_file({"x": torch.tensor([number])}, folder / name / "model.safetensors")
        found = read_weights(folder / name)
        ids.append({f"{PREFIX}x": found.tensors["x"]})
    more: dict[str, Any] = {"domain": OFF_CHAIN, "audits": (), "settlement": None, "files": found.files}
    more["weights"] = Weights.of(state_tree(ids[1]), [*ids[1]], {"x": f"{PREFIX}x"}, PREFIX)
    (folder / f"{name}.json").write_bytes(envelope(certificate(ids=ids[1], first=ids[0], **more)).encode())


def test_a_circle_of_certificates_is_refused(tmp_path: Path) -> None:
    for name, value, before in (("a", 1.0, 3.0), ("b", 2.0, 1.0), ("c", 3.0, 2.0), ("d", 4.0, 3.0)):
        invented(tmp_path, name, value, before)
    assert len(follow(tmp_path, "c", "b", by=("b",))) == 2
    a, b, c = (tmp_path / name for name in "abc")
    with pytest.raises(VerificationError, match=f"got a circle: {a} from {c} from {b} from {a}"):
        follow(tmp_path, "a", "b", "c", by=("b", "c"))
    with pytest.raises(VerificationError, match="expected one that ends, got a circle"):
        follow(tmp_path, "d", "a", "b", "c", by=("a", "b", "c"))
