"""What the tree must not contain, and that every test in it has a runner."""

import ast
import re
import runpy
import sys
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from scripts import constraints, docstrings
from tests.source_tree import ROOT, committed_files, imports_of, package_modules, parse
from tiebreak.protocol.tags import Tag

TEXT = {
    ".py", ".md", ".toml", ".txt", ".sol", ".json", ".sh", ".yml", ".yaml", ".html", ".j2", ".css", ".svg", ".cfg", "",
}  # fmt: skip
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|root|work|Users|opt|mnt|data)/\w")
REGISTRY = re.compile(
    r"(?:pypi|pythonhosted|registry\.npmjs|npmjs|yarnpkg|download\.pytorch|crates|anaconda|ghcr|docker)\.(?:org|com|io)\b"
    r"|--(?:extra-)?index-url|--find-links|^\s*registry\s*=",
    re.MULTILINE,
)
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNPICKLING = {"ProcessPoolExecutor", "Pool", "Manager", "Queue", "JoinableQueue", "ForkingPickler", "Unpickler"}
RISKY = re.compile(
    rf"(?<![\w.])({'|'.join(FORBIDDEN_CALLS)})\s*\(|\b({'|'.join(FORBIDDEN_MODULES)})\b|torch\.(load|save)"
)
"""What a file must contain for the syntax tree to be worth a look."""
SELF = ROOT / "tests" / "test_hygiene.py"


def python_files() -> list:
    return [p for p in committed_files() if p.suffix == ".py"]


def unsafe(tree: ast.AST) -> list[str]:
    """Names through which bytes could become code."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(node.func.id)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "torch.save"):
            found.append(ast.unparse(node.func))
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES]
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append(str(node.module))
    return found


def unpickling(tree: ast.AST) -> list[str]:
    """Calls and imports by which the standard library unpickles what another process sends."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found += ["recv"] if node.func.attr == "recv" and not node.args else []  # a socket's has a size
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [name.name for name in node.names if name.name in UNPICKLING]
        if isinstance(node, ast.Attribute) and node.attr in UNPICKLING:
            found.append(node.attr)
    return found


def test_every_python_test_has_a_runner(cases: Callable[[], None]) -> None:
    """pytest collects tests/**/test_*.py, and make names what is too large for that; no other test would ever run."""
    named_by_make = set(re.findall(r"-m pytest .*?(tests/\S+\.py)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert all((ROOT / name).is_file() for name in named_by_make)
    for path in python_files():
        collected = path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")
        if not collected and path.relative_to(ROOT).as_posix() not in named_by_make:
            has_tests = re.search(r"^\s*(async )?def test_|^\s*class Test", path.read_text(), re.MULTILINE)
            is_test = has_tests or path.name.startswith("test_") or path.stem.endswith("_test")
            assert not is_test, f"no runner collects {path.relative_to(ROOT)}"
        cases()


def test_every_solidity_test_has_a_runner() -> None:
    """forge collects *.t.sol below contracts/test."""
    for path in committed_files():
        if path.suffix == ".sol" and re.search(r"\bfunction (test|invariant_|statefulFuzz)", path.read_text()):
            where = path.relative_to(ROOT).as_posix()
            assert where.startswith("contracts/test/"), f"no runner collects {where}"
            assert where.endswith(".t.sol"), f"no runner collects {where}"


def guards(tree: ast.AST) -> list[int]:
    """Lines of assertions that neither narrow a type nor say which promise of the code itself they check."""
    narrow = ("is not None", "isinstance(")
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and node.msg is None and not any(n in ast.unparse(node.test) for n in narrow)
    ]


@pytest.mark.slow
def test_no_assertion_guards_against_hostile_input(cases: Callable[[], None]) -> None:
    """`python -O` leaves assertions out."""
    for module, path in package_modules().items():
        assert guards(parse(path)) == [], f"{module}: raise an error, or say which promise of ours it checks"
        cases()
    assert guards(ast.parse("assert name != '..'\nassert mail.hub\nassert x is not None\nassert a, 'ours'")) == [1, 2]


def without_comments(solidity: str) -> str:
    """Strings with // in them do not occur in what is looked for here."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", solidity, flags=re.DOTALL)


def declared_errors(solidity: str) -> set[str]:
    return set(re.findall(r"^\s*error (\w+)\(", without_comments(solidity), re.MULTILINE))


def errors_expected_in_solidity(solidity: str) -> set[str]:
    """A test can only expect an error of the contracts by its selector."""
    return set(re.findall(r"\b(\w+)\.selector\b", without_comments(solidity)))


def errors_expected_in_python(source: str) -> set[str]:
    """Whole strings in assertions: the name that `Reverted` carries is compared with one."""
    asserted = [node.test for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    constants = [node for test in asserted for node in ast.walk(test) if isinstance(node, ast.Constant)]
    return {node.value for node in constants if isinstance(node.value, str)}


ERRORS_EXPECTED = {".sol": errors_expected_in_solidity, ".py": errors_expected_in_python}


def test_every_custom_error_has_a_test_that_names_it(cases: Callable[[int], None]) -> None:
    files = [(path, path.relative_to(ROOT)) for path in committed_files() if path.suffix in (".sol", ".py")]
    sources = [path for path, where in files if where.is_relative_to("contracts/src")]
    tests = [path for path, where in files if where.is_relative_to("contracts/test") or where.is_relative_to("tests")]
    missing = set().union(*(declared_errors(path.read_text()) for path in sources))
    cases(len(missing))
    assert len(missing) > 40
    for path in sorted(tests, key=lambda path: path.suffix == ".py"):
        text = path.read_text()
        if any(name in text for name in missing):
            missing -= ERRORS_EXPECTED[path.suffix](text)
    assert missing == set(), "errors of the contracts that no test expects"


def test_error_that_is_only_mentioned_does_not_count_as_tested() -> None:
    source = "// error Old(uint256 x);\n    error Late();\n/* Late.selector */ f(Early.selector); // Late.selector\n"
    assert declared_errors(source) == {"Late"}
    assert errors_expected_in_solidity(source) == {"Early"}
    assert errors_expected_in_python('x = "Late"\nassert e.name == "Early", "or Late"') == {"Early"}


def named_tests(page: str) -> list[tuple[str, str]]:
    """File and test (or nothing) of every reference; a page writes them in backticks, as `file` or `file::test`.

    `…::` stands for the file that was named last; another `…` ends a name that is abbreviated.
    """
    parts = "".join(page.split("```")[::2]).split("`")
    assert "test_" not in "".join(parts[::2]), "a test without backticks"
    found, last = list[tuple[str, str]](), ""
    for word in parts[1::2]:
        file, colons, name = word.partition("::")
        if colons or "test_" in word or word.endswith(".t.sol") or (word.startswith("tests/") and word.endswith(".py")):
            last = last if file == "…" else file
            found.append((last, name))
    return found


def is_there(file: str, name: str, tests: dict[str, set[str]]) -> bool:
    """Whether one file alone ends so, and holds the test."""
    held = [functions for path, functions in tests.items() if f"/{path}".endswith(f"/{file}")]
    begun = name.removesuffix("…")
    return len(held) == 1 and (name in held[0] | {""} or (name != begun and any(f.startswith(begun) for f in held[0])))


def test_every_test_that_the_pages_name_is_there(cases: Callable[[], None]) -> None:
    files = [(path, path.relative_to(ROOT).as_posix()) for path in committed_files()]
    sources = [(path, where) for path, where in files if where.startswith(("tests/", "contracts/test/"))]
    tests = {
        where: set(re.findall(r"^ *(?:def|async def|function) (\w+)", path.read_text(), re.MULTILINE))
        for path, where in sources
        if where.endswith((".py", ".sol"))
    }
    for path, where in files:
        if where.startswith("docs/") and path.suffix == ".md":
            for file, name in named_tests(path.read_text()):
                assert is_there(file, name, tests), f"{where} names {file}::{name}"
                cases()


def test_tags_are_unique_and_prefix_free() -> None:
    values = [tag.value for tag in Tag]
    assert len(Tag.__members__) == len(set(values)) > 10  # an alias would be a second name for one value
    assert {len(v) for v in values} == {8}
    assert all(v.isascii() and v.startswith(b"tb.") for v in values)


def test_hash_tags_are_defined_in_one_module(cases: Callable[[], None]) -> None:
    for path in python_files():
        if path == ROOT / "tiebreak" / "protocol" / "tags.py" or path.is_relative_to(ROOT / "tests"):
            continue
        spelled = re.search(r"""\b[rR]?b[rR]?["']+tb\.""", path.read_text())
        assert spelled is None, f"{path.relative_to(ROOT)} spells a tag; use tiebreak.protocol.tags.Tag"
        cases()


def test_no_machine_paths_and_no_registry_hosts(cases: Callable[[], None]) -> None:
    for path in committed_files():
        if path.suffix not in TEXT or path == SELF or path.name == "LICENSE":
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if path == ROOT / "README.md":  # which names the one index that has builds without CUDA
            text = text.replace(" --index-url https://download.pytorch.org/whl/cpu\n", "\n", 1)
        for pattern in (MACHINE_PATH, REGISTRY):
            match = pattern.search(text)
            assert match is None, f"{path.relative_to(ROOT)} contains {match.group(0)!r}"  # type: ignore[union-attr]
        cases()


def test_no_module_uses_pickle_eval_or_unsafe_loading(cases: Callable[[], None]) -> None:
    for path in python_files():
        if RISKY.search(path.read_text()):
            assert unsafe(parse(path)) == [], f"{path.relative_to(ROOT)}"
        cases()


@pytest.mark.slow
def test_no_process_unpickles_what_another_one_sends(cases: Callable[[], None]) -> None:
    """They exchange bytes. Ray has a wire of its own, and `tiebreak.api.auditing.cluster` says whom that trusts."""
    for name, path in package_modules().items():
        assert unpickling(parse(path)) == [], name
        cases()
    for source in ("pipe.recv()", "from concurrent.futures import ProcessPoolExecutor", "context.Queue()"):
        assert unpickling(ast.parse(source)) != []
    assert unpickling(ast.parse("end.recv(1 << 16)")) == []


def test_public_class_names_are_unique() -> None:
    found = Counter(
        node.name
        for path in package_modules().values()
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(found) > 600
    assert [name for name, homes in found.items() if homes > 1] == []


def test_constraints_file_pins_exact_versions_and_files() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = constraints.pins(text)
    assert len(pins) > 30
    assert constraints.TORCH_PIN in pins
    entry = r"[a-z0-9.-]+==[0-9][A-Za-z0-9.]*(?: ; [^\\\n]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+"
    assert re.sub(r"#[^\n]*", "", re.sub(entry, "", text)).strip() == ""
    names = [pin.split("==")[0] for pin in pins]
    assert len(names) == len(set(names))


ADVISED: Final = {
    "aiohttp": "3.13.4", "cryptography": "46.0.5", "filelock": "3.20.3", "h11": "0.16", "jinja2": "3.1.6",
    "playwright": "1.55.1", "pyyaml": "5.4", "ray": "2.52", "requests": "2.32.4", "scikit-learn": "1.5",
    "setuptools": "78.1.1", "starlette": "1.0.1", "torch": "2.10", "transformers": "4.53", "urllib3": "2.6.3",
}  # fmt: skip
"""The first version without the advisories that are known, of each: CVE-2026-22815, 2026-26007, 2026-22701, 2025-43859,
2025-27516, 2025-59288, 2020-14343, 2025-62593, 2024-47081, 2024-5206, 2025-47273, 2026-48710, 2026-24747, 2025-6921 and
2026-21441."""


def version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.match(r"[0-9.]+", text)[0].rstrip(".").split("."))  # type: ignore[index]


def test_every_dependency_has_a_lower_bound_that_the_exact_versions_keep(cases: Callable[[], None]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked_for = [
        *project["dependencies"],
        *(one for lines in project["optional-dependencies"].values() for one in lines),
    ]
    exact = dict(pin.split(" ;")[0].split("==") for pin in constraints.pins((ROOT / "constraints.txt").read_text()))
    bounds = {}
    for requirement in (one for one in asked_for if not one.startswith("tiebreak[")):
        found = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[[a-z-]+\])?>=([0-9.]+)(?:; .*)?", requirement)
        assert found is not None, f"expected a lower bound, got {requirement}"
        name = found[1].lower()
        assert bounds.setdefault(name, found[2]) == found[2], f"two bounds of {name}"
        assert version(exact[name]) >= version(found[2]), f"{requirement}: constraints.txt has {exact[name]}"
        cases()
    for name, first in ADVISED.items():
        assert version(bounds[name]) >= version(first), f"{name}: versions before {first} have known advisories"


def test_hygiene_checks_detect_their_violations() -> None:
    for source in ("import pickle", "from joblib import load", "eval('1')", "import torch\ntorch.load('x')"):
        assert RISKY.search(source)
        assert unsafe(ast.parse(source)) != []
    for text in ("cd /home/me/x", "'/root/x'", "=/work/main", "https://pypi.org/simple"):
        assert MACHINE_PATH.search(text) or REGISTRY.search(text)


EXTRAS = {
    "tiebreak.api.huggingface": ["hf"],
    "tiebreak.hf": ["hf"],
    "tiebreak.axolotl": ["hf"],
    "tiebreak.api.evaluation.lm_eval_model": ["lm-eval", "finetune", "hf"],
    "tiebreak.api.evaluation": ["finetune", "hf"],
    "tiebreak.api.training.finetuning": ["finetune", "hf"],
    "tiebreak.api.training.rows": ["hf"],
    "tiebreak.api.training.templates": ["finetune", "hf"],
    "tiebreak.cli.finetune": ["finetune"],
    "tiebreak.engine.arithmetic.gpu.kernels": ["gpu"],
    "tiebreak.protocol.chain": ["chain"],
    "tiebreak.api.watching.sampling": ["monitor"],
    "tiebreak.lab.sim": ["chain", "sim"],
    "tiebreak.node.finetuning": ["serve"],
    "tiebreak.node": ["chain", "node"],
    "tiebreak.lab.demo": ["chain", "sim", "demo"],
}
"""What nobody needs who only trains or audits, and the extras that bring its libraries."""

LIGHT = ("tiebreak.protocol.", "tiebreak.cli.", "tiebreak.node.hub.")
"""What imports nothing of the extra `train`."""
HOSTS = {"tiebreak.axolotl": ["axolotl"]}
"""Plugins, which nothing but the program that they extend imports."""


def test_install_instructions_work_in_a_checkout(cases: Callable[[], None]) -> None:
    """Nothing is on an index, so `pip install tiebreak` would fetch nothing, or what somebody else put there.

    Messages of an installed package may name it: pip then adds what an extra lacks, and asks no index for the package.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*"),
    ]
    for path in [*files, *(ROOT / "tiebreak").rglob("*.py"), ROOT / "Dockerfile", ROOT / "Dockerfile.cuda"]:
        text = path.read_text() if path.is_file() else ""
        if path in files:
            assert not re.search(r"""pip install (-U )?["']?tiebreak|tiebreak\[[a-z]+[],]""", text), path
        for named in re.findall(r"""pip install [^\n`]*['"]?\.\[([\w,]+)\]""", text):
            assert {*named.split(",")} <= {*extras}, (path, named)
            cases()


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=;]", line)[0].lower() for line in requirements}


def test_every_import_is_a_declared_dependency(cases: Callable[[], None]) -> None:
    """What a package imports must be asked for by us, not merely happen to come along with something else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = names_of(project["dependencies"])
    optional = {extra: names_of(lines) for extra, lines in project["optional-dependencies"].items()}
    modules = {
        "lm_eval": "lm-eval",
        "sklearn": "scikit-learn",
        "eth_bloom": "eth-bloom",
        "eth_hash": "eth-hash",
        "lazy_loader": "lazy-loader",
        "markupsafe": "jinja2",
        "prometheus_client": "prometheus-client",
        "pynvml": "nvidia-ml-py",
        "yaml": "pyyaml",
    }
    # These appear in web3's own interface (types, providers, errors), in the versions web3 asks for.
    of_web3 = ("eth_abi", "eth_account", "eth_keys", "eth_tester", "eth_typing", "eth_utils", "hexbytes", "requests")
    modules |= dict.fromkeys(of_web3, "web3") | {"eth": "web3"}  # py-evm, which the extra `tester` asks for
    for name, path in package_modules().items():
        for _, reached in imports_of(parse(path)):
            top = reached.partition(".")[0]
            if top not in sys.stdlib_module_names and top != "tiebreak":
                extras = next((e for folder, e in EXTRAS.items() if f"{name}.".startswith(f"{folder}.")), [])
                extras = [*extras, *([] if f"{name}.".startswith(LIGHT) else ["train"])]
                asked_for = declared.union(*(optional[extra] for extra in extras), HOSTS.get(name, []))
                assert modules.get(top, top) in asked_for, (
                    f"{name} imports {top}, which pyproject.toml does not ask for"
                )
                cases()


def test_model_check_waits_for_a_slow_search(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = runpy.run_path(str(ROOT / "model" / "check.py"))["command"]
    command.__globals__["SECONDS"] = 1e-3
    assert command([sys.executable, "-c", "print(7)"], tmp_path) == "7\n"
    assert f"{Path(sys.executable).name} goes on after" in capfd.readouterr().err


FRAGMENTS = """Of fewer, no rule says anything.
Of the run tree over these.
In every so many steps, workers compute again what others have computed.
As `elementwise.Chains.make`.
From so many elements and terms on, an instruction is worth all of torch's threads beside compiled kernels.
As i64; Triton makes a constant of a 1.
In which some of so many elements are listed by their numbers.
On the first worker the whole value, 1-d, of which each worker holds a leading share; elsewhere nothing.
By what a mean is divided; f32 (bags, 1).
After which a fetch that found nothing is tried again.
By one key, after a burst of a fifth of it.
By the machine's steady clock: not to be tried before.
What says to others what a machine wants said.
So many times what was seen.
The checker's. Without it, write the claim.
Told by the hub.
When the work that is under way was started.
Whether of the job.
The tables, of which one is read.
The number of steps"""
SENTENCES = """Bytes that one key may post per second, after a burst of a fifth of them.
Whether the kernels run on a device.
If two are equal, the first counts.
Parts, each of which goes to one thread.
e of some elements (i64 numbers), FP64.
Runs a step, as `Interpreter.step` does. On a GPU, waits for the device."""


@pytest.mark.slow
def test_docstrings_are_complete_sentences(capfd: pytest.CaptureFixture[str]) -> None:
    assert docstrings.main(ROOT) == 0, capfd.readouterr().out
    assert [line for line in FRAGMENTS.splitlines() if docstrings.fault(line) is None] == []
    assert [line for line in SENTENCES.splitlines() if docstrings.fault(line) is not None] == []
    kernel = '@triton.jit\ndef f(x):\n    """Of two."""'
    source = f'a = 1\n"""Of one."""\n{kernel}\nclass A:\n    def g(self):\n        """Of three."""'
    assert [line for line, _ in docstrings.docstrings(ast.parse(source))] == [2, 8]
