"""Imports go one way: protocol <- engine <- sim <- tiebreak. Read from the syntax tree, so nothing is imported."""

import ast
from collections.abc import Callable

import pytest

from tests.source_tree import LAYERS, imports_of, package_modules, parse

RIM = ("tiebreak.protocol.chain",)
"""Adapters of protocol (prefixes): they may touch files, the clock and a node. The rest of protocol may not."""
IMPURE = frozenset(
    {"asyncio", "datetime", "io", "os", "pathlib", "random", "secrets", "shutil", "socket"}
    | {"subprocess", "tempfile", "time", "web3"}
)
NOT_IN_PROTOCOL = frozenset(["torch", "torchvision", "jax", "sklearn", "matplotlib"])


def layer(name: str) -> int | None:
    """Position of a dotted name in the order of layers, None for what is not ours."""
    return next((place for place, layer in enumerate(LAYERS) if name == layer or name.startswith(layer + ".")), None)


def upward(module: str, tree: ast.AST) -> list[str]:
    """Imports of a module that go against the order."""
    own = layer(module)
    assert own is not None
    return [name for _, name in imports_of(tree) if (other := layer(name)) is not None and other > own]


def hidden(tree: ast.AST) -> list[str]:
    """Imports of our own packages inside functions."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    return [name for f in functions for _, name in imports_of(f) if layer(name) is not None]


def impure(module: str, tree: ast.AST) -> list[str]:
    """Imports through which protocol code outside its adapters could touch a file, a socket, the clock, or torch."""
    tops = [name.split(".")[0] for _, name in imports_of(tree)]
    banned = NOT_IN_PROTOCOL if module.startswith(RIM) else NOT_IN_PROTOCOL | IMPURE
    return sorted(set(tops) & banned)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
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


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of ours it imports (a package's own __init__ is not an edge to its modules)."""
    modules = package_modules()
    graph = {}
    for module, path in modules.items():
        reached = {name for _, name in imports_of(parse(path)) if name in modules}
        parents = {name for name in reached if any(other.startswith(name + ".") for other in reached)}
        graph[module] = reached - parents - {module}
    return graph


def test_order_of_layers(cases: Callable[[], None]) -> None:
    for module, path in package_modules().items():
        assert upward(module, parse(path)) == [], f"{module} imports a higher layer"
        cases()


def test_no_import_hidden_in_a_function(cases: Callable[[], None]) -> None:
    for module, path in package_modules().items():
        assert hidden(parse(path)) == [], f"{module} hides an import in a function"
        cases()


def test_no_cycles() -> None:
    graph = import_graph()
    assert len(graph) > 5
    assert cycles(graph) == []


def test_protocol_is_pure(cases: Callable[[], None]) -> None:
    for module, path in package_modules().items():
        if module.startswith("tiebreak.protocol"):
            assert impure(module, parse(path)) == [], f"{module} is not an adapter"
            cases()


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (lambda t: upward("tiebreak.protocol.x", t), "from tiebreak.engine import run"),
        (lambda t: upward("tiebreak.engine.x", t), "import tiebreak.sim.adversary as a"),
        (lambda t: upward("tiebreak.sim.x", t), "def f():\n    from tiebreak.cli.main import main"),
        (hidden, "def f():\n    import tiebreak.protocol.program.isa"),
        (hidden, "class C:\n    def f(self):\n        from tiebreak.protocol import isa"),
        (lambda t: impure("tiebreak.protocol.x", t), "import torch.nn"),
        (lambda t: impure("tiebreak.protocol.x", t), "from time import time"),
        (lambda t: impure("tiebreak.protocol.chain.x", t), "from torch import nn"),
    ],
)
def test_the_checks_see_what_they_look_for(check: Callable[[ast.AST], list[str]], source: str) -> None:
    assert check(ast.parse(source)) != []


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c", "a"]]
