"""The page that checks certificates in a browser says what `tiebreak verify` says; its code runs under Node."""

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import CaseCounter
from tests.tiebreak.parties import Commands, Once, Parties
from tests.tiebreak.test_adapters import Adapted, make, perceptron
from tests.tiebreak.test_certificates import Desk, sharded
from tiebreak.cli.main import run, tiebreak
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, base64, from_base64

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "recheck" / "build" / "recheck.wasm"
NEEDED = "TIEBREAK_NEED_WASM" in os.environ
pytestmark = pytest.mark.skipif(not (MODULE.exists() or NEEDED), reason="needs recheck.wasm, which make wasm builds")


OWN_WORDS = re.compile(", got|header: |the one base64|no secp256k1|v of 27|: Exp|attestation: |: expected what")
"""Where sentences of the command begin that the page says otherwise."""


def entries(place: Path, *more: Path) -> list[list[str | None]]:
    """What a browser gives of dropped files and folders: paths, each with a place on this machine; None: empty."""
    found = list[list[str | None]]()
    for top in (place, *more):
        inner = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in inner:
            name = str(path.relative_to(top.parent))
            if path.is_file():
                found.append([name, str(path.resolve())])
            elif not any(path.iterdir()):
                found.append([name, None])
    return found


class Page:
    """The page's code in a process of Node that takes one case after the other."""

    def __init__(self, module: Path, **environment: str) -> None:
        command = ["node", str(ROOT / "tests" / "tiebreak" / "checker.mjs"), str(module)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=os.environ | environment)

    def check(self, main: list[Any], **options: Any) -> Any:
        """What the page says. options: bases, require, resaved, others."""
        assert self.process.stdin
        assert self.process.stdout
        given = {"main": main, "bases": [], "require": [], "resaved": False, "others": False}
        self.process.stdin.write(json.dumps(given | options) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert found.pop("leaked") == 0
        assert found.pop("memory") < 32 << 20
        return found

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(MODULE)
    yield made
    made.close()


class Both:
    """The command and the page on the same files, which must say the same."""

    def __init__(self, page: Page, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.page, self.folder, self.capsys = page, folder, capsys

    def __call__(
        self, model: Path, certificate: Path, bases: list[Path] | None = None, *, require: list[str] | None = None,
        resaved: bool = False, others: bool = False, malformed: bool = False,
    ) -> str:  # fmt: skip
        """The sentence of the refusal; empty if both say that it holds, what that proves, and what it does not.

        malformed: no honest party's files, for which the page may have its own words after the place and the rule.
        """
        given = [str(path.relative_to(self.folder)) for path in (model, certificate)]
        given += [word for base in bases or [] for word in ("--base", str(base.relative_to(self.folder)))]
        given += [word for one in require or [] for word in ("--require", one)]
        given += ["--resaved"] * resaved + ["--others"] * others
        self.capsys.readouterr()
        code = run(tiebreak, ["verify", *given])
        out, err = self.capsys.readouterr()
        dropped = entries(model) if certificate.is_relative_to(model) else entries(model, certificate)
        places = [entries(base) for base in bases or []]
        found = self.page.check(dropped, bases=places, require=require or [], resaved=resaved, others=others)
        assert found["holds"] == (code == 0), (out, err, found)
        if not found["holds"]:
            kind, _, sentence = err.strip().partition(": ")
            said = " ".join(found["said"].split())
            assert said == sentence or (malformed and said.startswith(OWN_WORDS.split(sentence)[0])), kind
            return str(found["said"])
        title, proves, open_ = out.strip().split("\n\n")
        assert found["title"] == title
        for name, told in (("proves", proves), ("open", open_)):
            assert [f"  - {line}" for line in found[name]] == told.split("\n")[1:]
        assert found["passed"] == found["asked"]
        return ""


@pytest.fixture
def both(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Both:
    monkeypatch.chdir(tmp_path)
    return Both(page, tmp_path, capsys)


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    made = Desk(parties, tmp_path, command)
    made.certify("trainer")
    made.certify("client")
    return made


def test_page_and_command_say_the_same_of_a_true_certificate(desk: Desk, both: Both, tmp_path: Path) -> None:
    assert both(desk.weights, desk.certificate) == ""
    addresses = [desk.parties.address(who) for who in ("client", "trainer", "stranger")]
    assert both(desk.weights, desk.certificate, require=addresses[:2]) == ""
    assert addresses[2] in both(desk.weights, desk.certificate, require=addresses)
    folder = tmp_path / "pretrained"
    sharded(desk, folder)
    assert "--resaved" in both(folder, desk.certificate)
    assert both(folder, desk.certificate, resaved=True) == ""
    said = both.page.check(entries(desk.weights, desk.certificate), require=["0x12"])["said"]
    assert said == "--require: expected an address of 40 hex digits, got '0x12'"
    alone = both.page.check(entries(desk.certificate))
    assert (alone["holds"], alone["passed"], len(alone["proves"])) == (True, [1], 3)


def other_byte(text: str, at: int) -> str:
    """Base64 of the same bytes but for one."""
    data = bytearray(from_base64("", text))
    data[at] ^= 1
    return base64(bytes(data))


STATEMENTS: dict[str, list[dict[str, Any]]] = {
    "": [{"_type": "x"}, {"predicateType": "urn:x"}, {"predicate": None}, {"more": 1}, {"subject": []}],
    "subject.0": [{"name": "a/b"}],
    "predicate": [
        {"job": None}, {"audits": []}, {"settlement": {"block": 1, "transaction": "0x" + "00" * 32}},
        {"others": {"../x": "00" * 32}}, {"attestation": {"type": "A", "evidence": "", "nonce": ""}},
    ],
    "predicate.job": [{"steps": 8}, {"steps": "7"}, {"signed": "AA=="}, {"signed": "A"}, {"signed": "AB=="}],
    "predicate.finalState": [
        {"lossBits": 1}, {"lossBits": 1 << 32}, {"lossBits": True}, {"lossBits": 1.5}, {"root": "00" * 32},
        {"root": "AB" * 32}, {"path": ["00" * 32]}, {"path": "x"},
    ],
    "predicate.weights": [
        {"places": [[0, 9]]}, {"places": [[5, 2], [0, 2]], "entries": 4}, {"places": [[0, -1]]}, {"nodes": []},
        {"places": [[8, 4]], "entries": 4}, {"nodes": ["00" * 32] * 9}, {"prefix": "\x1b"}, {"suffixes": {".a": ".b"}},
        {"suffixes": {}},
    ],
    "predicate.environment": [{"<img src=x onerror=alert(1)>": "é"}],
    "predicate.sizes": [{"operations": -1}, {"data": {"x": [1] * 9}}],
    "predicate.start": [{"nodes": {"999": "00" * 32}}],
}  # fmt: skip
"""Places in a statement, and the fields that are others there; None: missing."""
BYTES = {"job": (0, 1, 2, 60, 70, 100, -3, -70, -150, -172), "head": (0, 1, 5, 40, 50, -1, -40, -67)}


def test_page_and_command_refuse_a_false_statement_alike(desk: Desk, both: Both, cases: CaseCounter) -> None:
    """Each has the signatures of another statement."""
    document = json.loads(desk.certificate.read_text())
    payload = from_base64("payload", document["payload"])
    signed = {name: json.loads(payload)["predicate"][name]["signed"] for name in BYTES}
    flips = [(f"predicate.{n}", {"signed": other_byte(signed[n], at)}) for n, places in BYTES.items() for at in places]
    for place, fields in [(place, one) for place, listed in STATEMENTS.items() for one in listed] + flips:
        found = inner = json.loads(payload)
        for key in filter(None, place.split(".")):
            inner = inner[int(key) if key.isdigit() else key]
        inner.update(fields)
        for key in [key for key, value in fields.items() if value is None]:
            del inner[key]
        made = base64(json.dumps(found, sort_keys=True, separators=(",", ":")).encode())
        desk.certificate.write_text(json.dumps(document | {"payload": made}))
        assert both(desk.weights, desk.certificate, malformed=True), (place, fields)
        cases()


def test_page_and_command_refuse_a_false_envelope_alike(desk: Desk, both: Both, cases: CaseCounter) -> None:
    right = desk.certificate.read_text()
    document = json.loads(right)
    signatures = document["signatures"]

    def signed(*given: Any) -> str:
        return json.dumps(document | {"signatures": list(given)})

    flipped = [signatures[0] | {"sig": other_byte(signatures[0]["sig"], at)} for at in (0, 31, 40, 63, 64)]
    for text in (
        "", "[]", "{", '{"payload"', '{"payload": 1,}', '{"a": 1, "a": 1}', '{"a": NaN}', '{"a": "\\x"}',
        '{"a": "\\u12"}', "{} x", "nul", '{"payloadType": "x", "payload": "", "signatures": []}', "[" * 50,
        right + " " * MAX_ENVELOPE_BYTES,
        json.dumps(document | {"more": 1}), json.dumps(document | {"payload": document["payload"] + "="}),
        json.dumps(document | {"payloadType": "text/plain"}), json.dumps(document | {"payloadType": "é"}),
        signed(), signed(*signatures, signatures[0]), signed(*signatures[1:]), signed(*signatures * 20),
        *(signed(one, *signatures[1:]) for one in flipped), signed(signatures[0] | {"sig": ""}),
        signed(signatures[0] | {"keyid": "0x"}),
        signed({"keyid": "x" * 129, "sig": ""}), signed({"keyid": "x", "sig": base64(bytes(513))}), signed(1),
        signed({"sig": ""}),
        '{"a": ' + "9" * 5000 + "}", '{"\\u0000": "\\ud800"', "\ufeff{}",
        '{"a": 1e999, "b": [1, 2.50, true, null, {"x": "\'"}]}',
        json.dumps({"payloadType": [True, None, {"a'": 'b"\n'}, 5]}),
    ):  # fmt: skip
        desk.certificate.write_text(text, "utf-8")
        said = both(desk.weights, desk.certificate, malformed=True)
        assert said.startswith("certificate.json: "), text[:80]
        cases()


def header(dtype: Any, shape: list[int], places: list[int], **more: int) -> dict[str, Any]:
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": places, **more}}


HEADERS: list[tuple[Any, int]] = [
    (b"", 0), (b"[]", 0), ({}, 0), (b'{"a": {}, "a": {}}', 0), (b'{"a": [[[[]]]]}', 0), (b"\x01", 0), ({"a": 1}, 0),
    (b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, 1: 2}', 4), (header("F8", [], [0, 1]), 1),
    (header(["F32"], [], [0, 4]), 4), (header("F64", [], [0, 8]), 8), (header("F32", [-1], [0, 4]), 4),
    (header("F32", [], [0]), 4), (header("F32", [2], [0, 4]), 4), (header("F32", [1], [0, 4]), 5),
    (header("F32", [1] * 9, [0, 4]), 4), (header("F32", [0], [0, 0]), 0), (header("F32", [1 << 41], [0, 1 << 43]), 4),
    (header("F32", [1 << 30], [0, 1 << 32]), 4), (header("F32", [1], [4, 8]), 8), (header("BOOL", [2], [0, 2]), 2),
    (header("F32", [1], [0, 4], x=1), 4), (header("F32", [int("9" * 4000)] * 4000, [0, 4]), 4),
    ({"<b>é\n</b>": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4),
]  # fmt: skip
"""Headers, and how many bytes come after them."""


def test_page_and_command_refuse_malformed_weights_alike(
    desk: Desk, both: Both, tmp_path: Path, cases: CaseCounter
) -> None:
    path = tmp_path / "false.safetensors"
    for content, size in HEADERS:
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"\7" * size)
        assert both(path, desk.certificate, malformed=True).startswith("false.safetensors"), text[:99]
        cases()
    path.write_bytes(struct.pack("<Q", 99) + b"{}")
    assert "99 bytes of a header" in both(path, desk.certificate)
    path.write_bytes(b"abc")
    assert "8 bytes of a header" in both(path, desk.certificate)
    path.write_bytes(struct.pack("<Q", 100_000_000) + bytes(1000))
    assert "expected a header of at most 16777216 bytes, got 100000000" in both(path, desk.certificate)
    with path.open("wb") as file:
        file.truncate(5 << 30)
    assert "not a readable safetensors header" in both(path, desk.certificate, malformed=True)


def test_a_file_that_ends_before_its_size_is_refused(desk: Desk) -> None:
    liar = Page(MODULE, CHECKER_LIES="1")
    found = liar.check(entries(desk.weights, desk.certificate))
    liar.close()
    assert (found["holds"], "certificate.json: expected" in found["said"]) == (False, True)


def test_page_and_command_compare_tensors_alike(desk: Desk, both: Both, tmp_path: Path, cases: CaseCounter) -> None:
    right, path = load_file(desk.weights), tmp_path / "other.safetensors"
    bias = right["head.bias"]
    for changed in (
        {"head.bias": torch.nextafter(bias, bias + 9)}, {"head.bias": bias.view(torch.int32)}, {"more": bias + 1},
        {"é": bias + 1},
        {"head.bias": bias.bfloat16()}, {"head.bias": bias.half()}, {"head.bias": bias.long()}, {"head.bias": bias > 0},
        {"head.bias": bias.reshape(1, 3)}, {"x" * 300: bias + 1},
    ):  # fmt: skip
        save_file(right | changed, path)
        assert both(path, desk.certificate, resaved=True)
        cases()
    save_file(right, path, metadata={"saved": "again"})
    assert "pass --resaved" in both(path, desk.certificate)
    assert both(path, desk.certificate, resaved=True) == ""


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_pattern_of_narrow_floats_is_widened_as_the_command_does(
    page: Page, desk: Desk, tmp_path: Path, dtype: torch.dtype
) -> None:
    """The root that the page finds for all patterns is that of the same numbers in F32, NaN included."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    said = []
    for name, tensor in {"narrow": bits, "wide": bits.float()}.items():
        save_file(load_file(desk.weights) | {"head.bias": tensor}, tmp_path / f"{name}.safetensors")
        found = page.check(entries(tmp_path / f"{name}.safetensors", desk.certificate), resaved=True)
        said.append(found["said"].removeprefix(name))
    assert said[0] == said[1]


FILES: list[tuple[str, str | None]] = [
    ("pytorch_model.bin", ""), ("modeling.py", ""), ("adapter_config.json", "{}"), ("checkpoint-1", None),
    ("pytorch_model.bin.index.json", "{}"), ("config.json", '{"transformers_weights": "x"}'),
    ("tokenizer_config.json", '{"auto_m\\u0061p": {}}'),
    ("processor.json", '{"a": [{"b": {"auto_map": {"A": "x--y.Z"}}}]}'),
    ("config.json", '{"text_config": {"attn_implementation": "org/kernel"}}'),
    ("config.json", '{"_attn_implementation_internal": {"t": "paged|org/kernel@1:f"}}'),
    ("config.json", '{"vision_config": {"quantization_config": {}}}'), ("config.json", '{"torch_dtype": "bfloat16"}'),
    ("config.json", '{"dtype": {"text_config": "float16"}}'), ("config.json", '{"dtype": 3}'),
    ("config.json", '{"dtype": null}'),
    ("config.json", '{"tie_word_embeddings": false, "architectures": ["LlamaForCausalLM"]}'),
    ("config.json", '{"tie_word_embeddings": true}'), ("config.json", '{"use_kernels": false, "trust_remote_code": 0}'),
    ("config.json", '{"x": NaN, "auto_map": 1}'), ("config.json", '{"auto_map": 1, "auto_map": null}'),
    ("config.json", '\ufeff{"auto_map": 1}'),
    ("config.json", "[" * 50_000 + "]" * 50_000), ("config.json", '{"auto_map"'), ("vocab.json", '{"auto_map": 1}'),
    ("modules.json", "[]"), ("model.pt", ""), ("a/b/c/d/e/f/g/h/i/j/k.txt", ""),
    ("<img src=x>'\".json", '{"auto_map": 1}'),
    ("\u202ename\n.bin", ""), ("training_args.bin", ""), (".gitignore", ""), ("x.", ""),
    ("model.safetensors.index.json", "{}"), ("model.safetensors.index.json", '{"weight_map": {}}'),
    ("second.safetensors", "x"),
]  # fmt: skip


def test_page_and_command_name_the_same_doubtful_files(
    desk: Desk, both: Both, tmp_path: Path, cases: CaseCounter
) -> None:
    folder = tmp_path / "pretrained"
    for name, content in FILES:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        shutil.copy(desk.weights, folder / "model.safetensors")
        for harmless in ("config.json", "tokenizer.json", "README.md", "LICENSE"):
            (folder / harmless).write_text("[" if harmless == "config.json" else "{}")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if content is None else path.write_text(content)
        both(folder, desk.certificate)
        both(folder, desk.certificate, others=True)
        cases()


def test_page_says_that_it_does_not_read_other_formats(desk: Desk, page: Page, tmp_path: Path) -> None:
    (tmp_path / "pretrained").mkdir()
    shutil.copy(desk.weights, tmp_path / "pretrained" / "model.safetensors")
    (tmp_path / "pretrained" / "tiebreak.slsa.json").write_text("{}")
    found = page.check(entries(tmp_path / "pretrained", desk.certificate))
    assert found["holds"]
    assert any("nothing here reads: 'tiebreak.slsa.json'." in line for line in found["open"])


def test_page_and_command_name_the_same_files_changed_after_signing(
    parties: Parties, command: Commands, both: Both, tmp_path: Path, cases: CaseCounter
) -> None:
    desk = Desk(parties, tmp_path, command)
    folder = tmp_path / "pretrained"
    (folder / "1_Pooling").mkdir(parents=True)
    desk.weights.rename(folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "README.md", "1_Pooling/config.json"):
        (folder / name).write_text(f'{{"name": "{name}"}}')
    desk.weights, desk.certificate = folder, folder / "certificate.json"
    desk.certify("trainer")
    assert both(folder, desk.certificate) == ""
    for name, content in (
        ("README.md", "other"), ("config.json", "{}"), ("1_Pooling/config.json", "{ }"),
        ("generation_config.json", "{}"),
        ("vocab.txt", ""), ("1_Pooling/more.json", "{}"), ("2_More/config.json", "{}"),
    ):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
        both(folder, desk.certificate)
        both(folder, desk.certificate, others=True)
        cases()


@pytest.fixture
def adapted(once: Once, tmp_path: Path) -> Adapted:
    made = once("adapted", lambda folder: make(folder, perceptron()))
    return Adapted(shutil.copytree(made, tmp_path / "adapted"))


def test_page_and_command_say_the_same_of_an_adapter_and_its_base(adapted: Adapted, both: Both, tmp_path: Path) -> None:
    both.folder = tmp_path / "adapted"
    os.chdir(both.folder)
    assert both(adapted.adapter, adapted.certificate) == ""
    assert both(adapted.adapter, adapted.certificate, [adapted.base]) == ""
    assert "it is given twice" in both(adapted.adapter, adapted.certificate, [adapted.base, adapted.base])
    assert "got others" in both(adapted.adapter, adapted.certificate, [adapted.adapter])
    assert "got a model" in both(Path(shutil.copy(adapted.weights, both.folder)), adapted.certificate)
    adapted.change(lambda tensors: tensors["0.weight"].neg_(), adapted.base / "model.safetensors")
    assert "base: expected tensors" in both(adapted.adapter, adapted.certificate, [adapted.base])
    (adapted.adapter / "adapter_model.bin").touch()
    assert "expected adapter_model.safetensors and no other" in both(adapted.adapter, adapted.certificate)
    (adapted.adapter / "adapter_config.json").write_text("{}")
    assert "adapter_config.json has SHA-256" in both(adapted.adapter, adapted.certificate, others=True)
