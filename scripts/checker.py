"""Assembles the page that checks files in a browser: `python scripts/checker.py [--check]`; prints its SHA-256.

One file, tiebreak/node/pages/static/checker.html, is made from checker/ and recheck/build/recheck.wasm (`make wasm`).
The same sources give the same bytes. Its policy allows the one script and the one style sheet that are in it, by their
SHA-256, a worker from a blob, and WebAssembly; nothing else can be loaded, and nothing sent.
"""

import re
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "checker"
STATIC: Final = ROOT / "tiebreak" / "node" / "pages" / "static"
MODULE: Final = ROOT / "recheck" / "build" / "recheck.wasm"
PAGE: Final = STATIC / "checker.html"
WORKER: Final = "worker.js"
"""The last part of the worker's script; what it imports comes before it."""
IMPORT: Final = re.compile(r'^import \{ ([^}]*) \} from "\./([\w./]+)";\n', re.MULTILINE)
EXPORT: Final = re.compile(r"^export (?=(?:async function|function|class|const|let|var)\b\*? (\w+))", re.MULTILINE)


def bundle(name: str, done: dict[str, str]) -> str:
    """A module with all that it imports, each in its own function, as one script. done: those so far, which grow."""
    text = (SOURCES / name).read_text("utf-8")
    for names, needed in IMPORT.findall(text):
        if needed not in done:
            bundle(needed, done)
        if missing := {*names.split(", ")} - {*EXPORT.findall((SOURCES / needed).read_text("utf-8"))}:
            raise SystemExit(f"{name}: expected names that {needed} exports, got {', '.join(sorted(missing))}")
    body = EXPORT.sub("", IMPORT.sub(r'const { \1 } = modules["\2"];\n', text))
    if found := re.search(r"^(import|export)\b.*|</script|<!--", body, re.MULTILINE):
        raise SystemExit(f"{name}: expected imports and exports of names, in a script, got {found[0]!r}")
    done[name] = f'modules["{name}"] = (() => {{\n{body}return {{ {", ".join(EXPORT.findall(text))} }};\n}})();\n'
    return '"use strict";\nconst modules = {};\n' + "".join(done.values())


def assembled() -> str:
    """The whole page as one HTML text, made from its sources and the module."""
    font = b64encode((STATIC / "inter.woff2").read_bytes()).decode()
    style = (STATIC / "page.css").read_text("utf-8").replace("inter.woff2", f"data:font/woff2;base64,{font}")
    parts = {
        "style": style + (SOURCES / "page.css").read_text("utf-8"),
        "page": (SOURCES / "page.js").read_text("utf-8"),
        "worker": bundle(WORKER, {}),
        "module": b64encode(MODULE.read_bytes()).decode(),
    }
    digests = {name: b64encode(sha256(parts[name].encode()).digest()).decode() for name in ("style", "page")}
    parts["policy"] = (
        f"default-src 'none'; script-src 'sha256-{digests['page']}' 'wasm-unsafe-eval'; style-src "
        f"'sha256-{digests['style']}'; font-src data:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    return re.sub(r"\{\{ (\w+) \}\}", lambda found: parts[found[1]], (SOURCES / "index.html").read_text("utf-8"))


def main() -> None:
    """Writes the page; with --check, exits if the one that is checked in is another."""
    made = assembled().encode()
    if "--check" in sys.argv[1:] and (not PAGE.exists() or PAGE.read_bytes() != made):
        raise SystemExit(f"{PAGE}: expected the page that its sources make; run python scripts/checker.py")
    PAGE.write_bytes(made)
    print(f"{sha256(made).hexdigest()}  {PAGE.relative_to(ROOT)}  {len(made):,} bytes")


if __name__ == "__main__":
    main()
