"""Imports go one way, between packages and between their folders, and only adapters touch the world outside.

All of it is read from the syntax trees, so nothing is imported.
"""

import ast
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache

import pytest

from tests.source_tree import LAYERS, ROOT, committed_files, imports_by_name, imports_of, package_modules, parse

_ENGINE = "system prebuilt native dtypes lowering optimizers data capture arithmetic run logged distributed"
_PROTOCOL = (
    "errors arguments strict_json tags codec packing numbers hashing trees program commitments game parties chain"
)
_API = (
    "machine signing data builtin auditing disputing training agreement certification provenance evaluation "
    "huggingface chain watching corpus"
)
FOLDERS = {
    "tiebreak.protocol": _PROTOCOL.split(),
    "tiebreak.engine": _ENGINE.split(),
    "tiebreak.lab.sim": ["world", "adversaries", "games"],
    "tiebreak.api": _API.split(),
    "tiebreak.lab": ["worst", "sim", "incentives", "network", "demo", "commands"],
    "tiebreak": ["protocol", "engine", "api", "axolotl", "hf", "node", "cli", "__main__", "lab"],
}
"""Folders of each package and modules beside them, in the order in which they may import: each those before it."""

CORE_TESTS = ("protocol", "engine", "chain", "contracts")
"""Folders of tests that load no commands: without a way to the lab, they need not run where it is gone (`.ci/core`)."""
BELOW_API = ("tiebreak.protocol", "tiebreak.engine", "tiebreak.lab.sim")
"""Packages in which only adapters touch the world outside; the API and what is above it may."""
ADAPTERS = {
    "tiebreak.protocol.chain": "speaks to Ethereum nodes",
    "tiebreak.engine.native": "runs compilers and forks, and asks the environment for them and for the cache folder",
    "tiebreak.engine.system": "ends processes, and knows what operating systems lack",
    "tiebreak.lab.sim.games.runner": "plays games in several processes",
}
"""What below the API may start a process, open a socket or read the environment, by prefix."""
OUTSIDE = frozenset(
    {"asyncio", "http", "multiprocessing", "requests", "socket", "socketserver", "ssl", "subprocess", "urllib", "web3"}
)
OUTSIDE_OF_OS = ("environ", "getenv", "putenv", "system", "popen", "fork", "exec", "spawn", "posix_spawn")
"""Beginnings of what `os` offers for the same."""
IMPURE = OUTSIDE | frozenset(
    {"ctypes", "datetime", "io", "os", "pathlib", "random", "secrets", "shutil", "sys", "tempfile", "threading", "time"}
    | {"torch", "torchvision", "jax", "sklearn"}
)
"""What protocol below `chain` may not reach, whatever it imports."""


def layer(name: str) -> int | None:
    """Position of a dotted name in the order of layers, None for what is not ours."""
    return next((place for place, layer in enumerate(LAYERS) if name == layer or name.startswith(layer + ".")), None)


def upward(module: str, tree: ast.AST) -> list[str]:
    """Imports of a module that go against the order of packages."""
    own = layer(module)
    assert own is not None
    return [name for _, name in imports_of(tree) if (other := layer(name)) is not None and other > own]


def of_one_system(tree: ast.AST) -> list[str]:
    """What only some operating systems have: modules, functions and places."""
    names = {"fcntl", "msvcrt", "resource", "sched_getaffinity", "sysconf", "uname", "getuid", "O_NOFOLLOW"}
    found = [name for _, name in imports_of(tree) if name in names]
    found += [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in names]
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return found + [text for text in texts if text.startswith(("/proc/", "/sys/"))]


def hidden(tree: ast.AST) -> list[str]:
    """Imports of our own packages inside functions."""
    if all(node.col_offset == 0 for node, _ in imports_of(tree)):
        return []
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    return [name for f in functions for _, name in imports_of(f) if layer(name) is not None]


def is_in(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def folder_of(package: str, module: str) -> str | None:
    """The folder of a package that a module lies in, or its own name beside the folders; None if it lies elsewhere."""
    return module.removeprefix(package + ".").split(".")[0] if module.startswith(package + ".") else None


def folder_imports(package: str, graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Pairs of different folders of a package, the first of which imports the second."""
    return {
        (own, other)
        for module, imported in graph.items()
        for name in imported
        if (own := folder_of(package, module)) and (other := folder_of(package, name)) and own != other
    }


def against(order: Sequence[str], pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those pairs that go against an order, or name what is not in it."""
    return {(a, b) for a, b in pairs if a not in order or b not in order or order.index(b) > order.index(a)}


def touches(tree: ast.AST) -> list[str]:
    """Where a module could start a process, open a socket or read the environment."""
    found = sorted({name.split(".")[0] for _, name in imports_of(tree)} & OUTSIDE)
    found += [name for _, name in imports_of(tree) if name.startswith("os.") and name[3:].startswith(OUTSIDE_OF_OS)]
    for node in ast.walk(tree) if any(name == "os" for _, name in imports_of(tree)) else ():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found += [f"os.{node.attr}"] * node.attr.startswith(OUTSIDE_OF_OS)
    return found


def executed_imports(tree: ast.AST) -> set[str]:
    """Dotted names that importing a module imports: all but those for type checkers alone."""
    if all(node.col_offset == 0 for node, _ in imports_of(tree)):
        return {name for _, name in imports_of(tree)}
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    return {name for node, name in imports_of(tree) if id(node) not in typing_only}


def ways_to(banned: Collection[str], start: str, imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Chains of imports that lead from a module of ours through modules of ours to a banned one."""
    found, seen, waiting = [], {start}, [[start]]
    while waiting:
        path = waiting.pop()
        for name in imports[path[-1]]:
            if name.split(".")[0] in banned:
                found.append([*path, name])
            # Importing a.b.c runs a.b too.
            parents = [".".join(name.split(".")[:depth]) for depth in range(2, name.count(".") + 2)]
            for module in parents:
                if module in imports and module not in seen:
                    seen.add(module)
                    waiting.append([*path, module])
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Cycles found by depth-first search, each as the path that closes."""
    found, done, path = [], set(), []

    def visit(node: str) -> None:
        if node in path:
            found.append([*path[path.index(node) :], node])
            return
        if node in done:
            return
        path.append(node)
        for following in sorted(graph.get(node, ())):
            visit(following)
        path.pop()
        done.add(node)

    for node in sorted(graph):
        visit(node)
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports, by name too (a package's own __init__ is no edge to its modules)."""
    modules = package_modules()
    graph = {}
    for module, path in modules.items():
        tree = parse(path)
        reached = {
            name for name in [*(name for _, name in imports_of(tree)), *imports_by_name(tree)] if name in modules
        }
        parents = {name for name in reached if any(other.startswith(name + ".") for other in reached)}
        graph[module] = reached - parents - {module}
    return graph


def test_no_module_imports_a_higher_layer(cases: Callable[[], None]) -> None:
    """Each module of a layer; those on top of the package (`tiebreak`, `tiebreak.hf` ...) stand in `FOLDERS`."""
    for module, path in package_modules().items():
        if layer(module) is not None:
            assert upward(module, parse(path)) == [], f"{module} imports a higher layer"
            cases()


def test_no_way_leads_from_the_core_to_the_lab(cases: Callable[[], None]) -> None:
    """Neither by imports of imports nor by name: a production install has no adversary in any process."""
    lab = {module for module in package_modules() if is_in(module, "tiebreak.lab")}
    assert len(lab) > 50
    for module, path in package_modules().items():
        if module not in lab:
            assert not lab & (import_graph()[module] | executed_imports(parse(path))), f"{module} imports the lab"
            assert "tiebreak.lab" not in path.read_text(), f"{module} speaks of the lab"
            cases()
    for path in committed_files():
        if path.relative_to(ROOT).parts[:2] in {("tests", name) for name in CORE_TESTS}:
            assert "tiebreak.lab" not in path.read_text(), f"{path} speaks of the lab"
            cases()


def test_neither_the_product_nor_its_benchmarks_import_tests(cases: Callable[[], None]) -> None:
    for path in committed_files():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in {"tiebreak", "benchmarks", "scripts"}:
            assert not [name for _, name in imports_of(parse(path)) if is_in(name, "tests")], path
            cases()


def test_no_import_hidden_in_a_function(cases: Callable[[], None]) -> None:
    for module, path in package_modules().items():
        assert hidden(parse(path)) == [], f"{module} hides an import in a function"
        cases()


def test_imports_have_no_cycles() -> None:
    graph = import_graph()
    assert len(graph) > 5
    assert "tiebreak.node.worker_tasks" in graph["tiebreak.node.workers"], "imported by name"
    assert cycles(graph) == []


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_between_folders_follow_their_order(package: str) -> None:
    pairs = folder_imports(package, import_graph())
    assert len(pairs) >= 3
    assert against(FOLDERS[package], pairs) == set()
    computing = {"arithmetic", "run", "logged", "distributed"}
    assert not [pair for pair in pairs if "capture" in pair and computing & {*pair}], "they do not know each other"


def test_api_module_names_are_unique_across_folders() -> None:
    names = Counter(name.split(".")[-1] for name in package_modules() if name.startswith("tiebreak.api."))
    assert [name for name, count in names.items() if count > 1] == []


def test_only_adapters_use_processes_network_or_environment(cases: Callable[[], None]) -> None:
    below = [m for m in package_modules() if any(is_in(m, package) for package in BELOW_API)]
    for module in below:
        if not any(is_in(module, adapter) for adapter in ADAPTERS):
            assert touches(parse(package_modules()[module])) == [], f"{module} is not an adapter"
            cases()
    for adapter in ADAPTERS:
        assert any(touches(parse(package_modules()[module])) for module in below if is_in(module, adapter)), adapter


def test_one_module_knows_the_operating_system(cases: Callable[[], None]) -> None:
    core = {name: parse(path) for name, path in package_modules().items() if not is_in(name, "tiebreak.lab")}
    assert of_one_system(core.pop("tiebreak.engine.system")) != []
    for module, tree in core.items():
        assert of_one_system(tree) == [], module
        cases()


@cache
def executed() -> dict[str, set[str]]:
    """What importing each module imports. `tiebreak` itself the interpreter has run before anything else."""
    return {module: executed_imports(parse(path)) for module, path in package_modules().items() if module != "tiebreak"}


def test_protocol_is_pure_through_all_that_it_imports(cases: Callable[[], None]) -> None:
    for module in executed():
        if is_in(module, "tiebreak.protocol") and not is_in(module, "tiebreak.protocol.chain"):
            assert ways_to(IMPURE, module, executed()) == []
            cases()


LIGHT = (
    "certification.certificates", "certification.claims", "certification.job_receipts", "certification.lineage",
    "chain.endings", "chain.onchain", "corpus.programs", "disputing.judging", "provenance.formats", "signing.attesting",
    "training.reading",
)  # fmt: skip


def test_what_is_light_imports_no_torch() -> None:
    """Importing it takes longer than hashing half a gigabyte."""
    for module in LIGHT:
        assert ways_to({"torch"}, f"tiebreak.api.{module}", executed()) == [], module
    assert ways_to({"torch"}, "tiebreak.node.hub.process", executed()) == []
    assert ways_to({"torch"}, "tiebreak.node.finetuning.scheduler", executed()) == []
    assert ways_to({"torch"}, "tiebreak.api.certification.issuance", executed()) != []


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (lambda t: upward("tiebreak.protocol.x", t), "from tiebreak.engine import run"),
        (lambda t: upward("tiebreak.engine.x", t), "import tiebreak.lab.sim.adversary as a"),
        (lambda t: upward("tiebreak.node.x", t), "def f():\n    from tiebreak.cli.main import main"),
        (of_one_system, "from pathlib import Path\nPath('/proc/cpuinfo').read_text()"),
        (of_one_system, "import fcntl"),
        (hidden, "def f():\n    import tiebreak.protocol.program.isa"),
        (hidden, "class C:\n    def f(self):\n        from tiebreak.protocol import isa"),
        (touches, "import subprocess as s"),
        (touches, "def f():\n    from urllib.request import urlopen"),
        (touches, "from os import environ"),
        (touches, "import os\nx = os.environ.get('HOME')"),
        (touches, "import os\nos.execvp('sh', [])"),
    ],
)
def test_layering_checks_detect_their_violations(check: Callable[[ast.AST], list[str]], source: str) -> None:
    assert check(ast.parse(source)) != []


def test_wrong_import_order_and_cycles_are_detected() -> None:
    pairs = folder_imports("p", {"p.a.x": {"p.b.y", "p.a.z", "q.b"}, "p.b.y": {"p.c"}, "p.d": {"p.a.x"}})
    assert pairs == {("a", "b"), ("b", "c"), ("d", "a")}
    assert against(("c", "b", "a"), pairs) == {("d", "a")}
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]
