"""The files of the working tree, for the tests that read them."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("tiebreak.protocol", "tiebreak.engine", "tiebreak.api", "tiebreak.node", "tiebreak.cli", "tiebreak.lab")
"""Layers in the order in which they may import: each only those before it, and itself. The last is the rest."""


@cache
def committed_files() -> tuple[Path, ...]:
    """Files under version control, or, in an unpacked archive, all but what tools leave behind."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        return tuple(p for name in listed.split("\0") if name and (p := ROOT / name).is_file())
    skipped = {".venv", ".venv-tools", "node_modules", "__pycache__", "out", "cache", "demo-output", "runs", "build"}
    return tuple(p for p in sorted(ROOT.rglob("*")) if p.is_file() and not skipped & set(p.relative_to(ROOT).parts))


@cache
def package_modules() -> dict[str, Path]:
    """Dotted name -> file, for every module of the packages."""
    modules = {}
    for path in sorted((ROOT / "tiebreak").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = path
    return modules


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))


@cache
def imports_of(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """Every import in a tree with the dotted name it reaches; `from a import b` gives a.b as well as a."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer they reach; write the full name"
            assert node.module is not None
            found += [(node, node.module), *((node, f"{node.module}.{alias.name}") for alias in node.names)]
    return found


@cache
def imports_by_name(tree: ast.Module) -> list[str]:
    """Dotted names given to `import_module`, as they are or by a constant of the module."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    given = [node.args[0] for node in called if ast.unparse(node.func).split(".")[-1] == "import_module"]
    names = [constants.get(arg.id) if isinstance(arg, ast.Name) else getattr(arg, "value", None) for arg in given]
    return [name for name in names if isinstance(name, str)]
