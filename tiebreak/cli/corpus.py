"""`tiebreak corpus`: computes programs whose roots are known, states what came out, and checks such programs."""

from collections.abc import Sequence
from pathlib import Path
from re import fullmatch

import click

from tiebreak import api
from tiebreak.api.corpus import programs
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.engine.data.disk import write_file
from tiebreak.protocol.commitments.dsse import Envelope
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.statement import WORDS, hexed, sign
from tiebreak.protocol.errors import ConfigurationError

_corpus_option = click.option("--corpus", "folder", type=opt.FOLDER, default=programs.CORPUS, help="Folder of the "
                              "corpus.  [default: that of this installation]")  # fmt: skip


@click.group()
def corpus() -> None:
    """Compute programs of known roots, and check others' results.

    The corpus has 21 small training runs with their data and the root that each must reach, on any machine. `run`
    computes them here and writes one signed statement; `check` reads one. docs/corpus.md lists what machines computed.
    """


@corpus.command()
@click.argument("names", nargs=-1)
@click.option("--device", "devices", multiple=True, help="Torch device; may be repeated.  [default: the CPU and each "
              "GPU]")  # fmt: skip
@click.option("--note", default="", help="A note for readers about this machine, such as that it is emulated.")
@opt.key_option("Key file of the signer.  [default: a new key that is thrown away]", required=False)
@opt.output_option("corpus-statement.json", "The statement.", kind=opt.NEW_FILE)
@_corpus_option
@opt.json_option
def run(
    names: tuple[str, ...], devices: tuple[str, ...], note: str, key: Path | None, output: Path, folder: Path,
    as_json: bool,
) -> int:  # fmt: skip
    """Compute the programs NAMES (default: all) on each device.

    Each is computed by the device's kernels and by torch alone. Every run is compared with its root. Where one differs,
    the step is disputed against the integers of the specification, and the first instruction and operands that differ
    go into the statement: please report that.

    Exit codes: 0 all reach their roots, 2 some do not (the statement is written), 1 not possible as asked.
    """
    if not fullmatch(WORDS, note):
        raise ConfigurationError("expected a note of at most 255 printable ASCII characters, got another text")
    chosen = [programs.read(name, folder) for name in dict.fromkeys(names or programs.names(folder))]
    owner = api.keys.new_key() if key is None else load_key(key)
    made = api.corpus_runs.state(chosen, devices, note, lambda found: click.echo(str(found), err=True))
    write_file(output, sign(Envelope(payload=made.payload), owner).encode())
    if key is None:
        click.echo(f"signed by {hexed(owner.address)}, a key that is thrown away (see --key)", err=True)
    return _show(made, [owner.address], as_json=as_json)


@corpus.command()
@click.argument("file", type=opt.FILE)
@opt.require_option
@_corpus_option
@opt.json_option
def check(file: Path, require: tuple[Address, ...], folder: Path, as_json: bool) -> int:
    """Check a statement FILE: its signatures and its roots.

    The roots have to be those of this corpus.
    What the machine was, and that it computed at all, is the word of whoever signed. Run the corpus yourself.

    Exit codes: 0 it holds and every program reached its root, 2 it does not, 1 not possible as asked.
    """
    return _show(*programs.check(file, folder, require), as_json=as_json)


def _show(made: programs.CorpusStatement, signers: Sequence[Address], *, as_json: bool) -> int:
    """Prints a statement, and exits with the code of its result."""
    if as_json:
        words = {"signers": list(map(hexed, signers)), "equal": not made.differing}
        opt.tell(words | made.document()["predicate"], as_json=True)
    else:
        click.echo("\n".join(made.lines(signers)))
    return 2 if made.differing else 0
