"""What a person declares of a model, and the dossier and the card that it goes into."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from playwright.sync_api import sync_playwright
from safetensors.torch import load_file

from tests.tiebreak.parties import Commands, Parties
from tests.tiebreak.strict_html import Strict
from tests.tiebreak.test_certificates import Desk, certificate_of
from tiebreak.api.certification import folders
from tiebreak.api.certification.certificates import read_certificate
from tiebreak.api.certification.issuance import sizes_of
from tiebreak.api.provenance.about import FIELDS, About
from tiebreak.api.provenance.filling import template
from tiebreak.api.training.reading import open_directory
from tiebreak.cli.key import load_key
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import ConfigurationError, EncodingError
from tiebreak.protocol.program.isa import DType
from tiebreak.protocol.program.program import Program

HOSTILE = "]]><script>alert(1)</script> \"'&amp; \u00e9\U0001f600 {{ x }} \\\\ --> # - : %"
TEXT = f"""
name = {HOSTILE!r}
license = "apache-2.0"
base_model = "org/model"
datasets = ["org/data", "other"]
language = ["no", "en"]
tags = ["1e3", "yes: no", "#x"]
energy = "0.4 kWh"
""".replace(repr(HOSTILE), '"' + HOSTILE.replace("\\", "\\\\").replace('"', '\\"') + '"')
LABEL = "Entries of the data, with their sizes (first: examples)"


@pytest.fixture
def desk(parties: Parties, tmp_path: Path, command: Commands) -> Desk:
    return Desk(parties, tmp_path, command)


def about(desk: Desk, text: str = TEXT) -> Path:
    path = desk.folder / "about.toml"
    path.write_text(text)
    return path


def rows(page: str) -> dict[str, str]:
    """The mark of each line of a dossier by its label; strict about the page."""
    read = Strict(page)
    assert {tag for tag, _ in read.seen}.isdisjoint({"script", "a", "img", "link", "iframe", "form"})
    found = {}
    for row in page.split("<tr>")[1:]:
        cells = Strict(row.split("</tr>")[0]).text
        label = row.split("<th>")[1].split("</th>")[0] if "<th>" in row else ""
        if label:
            found[label] = cells.removeprefix(label)
    return found


def test_a_dossier_says_of_each_line_how_it_is_known(desk: Desk) -> None:
    said = desk.certify("trainer", "--for", "dossier,hub", "--about", about(desk))
    assert "not_declared  limits" in said
    assert "not_declared  energy" not in said
    page = (desk.folder / folders.DOSSIER).read_text()
    read, found, signed = Strict(page), rows(page), certificate_of(desk)["predicate"]
    assert HOSTILE in read.text
    job, sizes = signed["job"], signed["sizes"]
    assert found["Program (root)"] == job["program"] + "replayable"
    assert found["Data (root)"] == job["data"] + "replayable"
    total = f"{sizes['operations']:,} in a step, {sizes['operations'] * job['steps']:,} in all"
    assert found["Operations on numbers"] == f"{total}replayable"
    for name, shape in sizes["data"].items():
        assert f"{name}: {' x '.join(map(str, shape)) or 'one number'}" in found[LABEL]
    assert found["Signed by"] == f"trainer: {desk.parties.address('trainer')}signed"
    assert found[FIELDS["energy"].question] == "0.4 kWhdeclared"
    assert found[FIELDS["limits"].question] == "not answereddeclared"
    asked = [field.question for name, field in FIELDS.items() if name not in ("tags", "pipeline_tag")]
    assert [question for question in asked if not found[question].endswith("declared")] == []
    told = desk.verify(desk.weights)
    assert f"{folders.DOSSIER} (dossier) is what this certificate makes of it, but for what it declares" in told
    desk.certify("client")
    desk.verify(desk.weights)
    desk.certify("client", "--for", "dossier", "--about", about(desk))
    assert desk.parties.address("client") in (desk.folder / folders.DOSSIER).read_text()
    desk.verify(desk.weights)


@pytest.mark.slow
def test_a_dossier_fits_a4_and_loads_nothing(desk: Desk) -> None:
    """In Debian's Chromium, with answers as long as they may be and without a place to break a line."""
    long = "".join(f'{name} = "{"x" * 2000}"\n' for name in ("name", "purpose", "limits", "period"))
    desk.certify("trainer", "--for", "dossier", "--about", about(desk, long))
    path = shutil.which("chromium")
    assert path, "expected Debian's package chromium, which .ci/run installs"
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]).new_page()
        said, asked = list[str](), list[str]()
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        for width in (320, 794):
            page.set_viewport_size({"width": width, "height": 1123})
            page.goto((desk.folder / folders.DOSSIER).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        pages = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", page.pdf(prefer_css_page_size=True))
        page.context.browser.close()
    assert 3 <= len(pages) <= 12
    assert {(round(float(width)), round(float(height))) for width, height in pages} == {(595, 842)}
    assert (said, len(asked)) == ([], 2)


def test_sizes_follow_from_the_program_and_a_second_signer_compares_them(desk: Desk) -> None:
    desk.certify("trainer")
    sizes = certificate_of(desk)["predicate"]["sizes"]
    count = sum(tensor.numel() for tensor in load_file(desk.weights).values())
    assert (sizes["parameters"], sizes["trained"]) == (count, count)
    data = open_directory(desk.run).data()
    assert sizes["data"] == {name: [*tensor.shape] for name, tensor in data.items()}
    signed = read_certificate(desk.certificate).certificate
    assert signed.sizes is not None
    false = replace(signed, sizes=replace(signed.sizes, trained=count + 1))
    desk.certificate.write_bytes(
        sign(Envelope(payload=false.payload), load_key(desk.parties.path("trainer.pem"))).encode()
    )
    desk.verify(desk.weights)
    assert "expected the sizes of the run" in desk.certify("client", code=2)
    older = replace(signed, sizes=None)
    desk.certificate.write_bytes(
        sign(Envelope(payload=older.payload), load_key(desk.parties.path("trainer.pem"))).encode()
    )
    desk.certify("client", "--for", "dossier")
    assert LABEL not in (desk.folder / folders.DOSSIER).read_text()
    desk.verify(desk.weights)


@pytest.mark.parametrize("names", [["a\nb"], ["\u00e9"], ["x" * 256], [f"x{number}" for number in range(33)]])
def test_data_of_many_entries_or_unprintable_names_have_no_sizes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    program = open_directory(desk.run).program
    assert sizes_of(program) is not None
    monkeypatch.setattr(Program, "data_spec", lambda _: dict.fromkeys(names, (DType.F32, (2,))))
    assert sizes_of(program) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0.4 kWh", "0.5 kWh"), ("replayable</td>", "signed</td>"), (">declared</td>", ">signed</td>"),
        ("<body>", "<body><script>1</script>"), ("in a step", "in a  step"),
        ('<meta name="about"', '<meta name="abuot"'),
        ("&quot;license&quot;", "&quot;licence&quot;"), ("&quot;org/data&quot;", "&quot;org//data&quot;"),
    ],
)  # fmt: skip
def test_a_changed_dossier_is_refused(desk: Desk, old: str, new: str) -> None:
    desk.certify("trainer", "--for", "dossier", "--about", about(desk))
    path = desk.folder / folders.DOSSIER
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert f"{path}: " in desk.verify(desk.weights, code=2)


def test_answers_are_data_in_the_header_of_a_card_and_take_the_place_of_older_ones(desk: Desk) -> None:
    card = desk.folder / "README.md"
    card.write_text("---\nlicense: mit\ntags:\n- old\n- older\nmine: 1\n---\n# Mine\n")
    desk.certify("trainer", "--for", "hub", "--about", about(desk))
    read = ModelCard(card.read_text())
    assert read.data.to_dict() == {
        "mine": 1, "license": "apache-2.0", "tags": ["1e3", "yes: no", "#x"], "base_model": "org/model",
        "datasets": ["org/data", "other"], "language": ["no", "en"],
    }  # fmt: skip
    assert read.text.strip().endswith("# Mine")
    desk.verify(desk.weights)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('license = "mit\\nlibrary_name: x"', "about, license: expected text (Licence of the model"),
        ('license = "a b"', "about, license"), ("license = 3", "about, license"), ('license = ""', "about, license"),
        ('tags = "one"', "about, tags: expected a list"), ("tags = []", "about, tags"), ("tags = [1]", "about, tags"),
        ('purpose = ["one"]', "about, purpose: expected text"), ('name = "a\\u202eb"', "about, name"),
        (f'name = "{"x" * 2001}"', "about, name"), (template("about.toml"), "and not the question"),
        ('base_model = "../model"', "about, base_model"),
        ('licence = "mit"', "expected fields among name, version"), ("name =", "expected TOML"),
        ("name = " + "1" * 5000, "expected TOML"), ("name = 0x" + "f" * 5000, "expected TOML"),
        ("name = 1979-05-27", "about, name"), ("\ud800", "expected TOML"),
    ],
)  # fmt: skip
def test_wrong_answers_are_refused_before_anything_is_written(desk: Desk, text: str, said: str) -> None:
    path = desk.folder / "about.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    told = desk.certify("trainer", "--for", "dossier", "--about", path, code=1)
    assert said in told
    assert str(path) in told
    assert not desk.certificate.exists()
    with pytest.raises(ConfigurationError, match=r"about\.toml"):
        About.read(path)


@pytest.mark.parametrize("text", ["", "[]", '{"answers":{"name":1}}', '{"answers":{}}x', '{"answers":{},"more":1}'])
def test_carried_answers_of_strangers_are_checked(text: str) -> None:
    with pytest.raises(EncodingError):
        About.read_carried(text)
    found = About(answers={"name": HOSTILE, "tags": ["a"]})
    assert About.read_carried(found.carried()) == found


def test_the_documentation_has_all_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificates.md").read_text()
    lines = [f"| `{name}`{' (list)' * field.many} | {field.question} |" for name, field in FIELDS.items()]
    assert "\n".join(lines) in page
