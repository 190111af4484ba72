"""`tiebreak corpus`: computes programs whose roots are known, states what came out, and checks such statements."""

import sys
from pathlib import Path
from re import fullmatch

import click

from tiebreak import api
from tiebreak.api.corpus import programs, statements
from tiebreak.cli.key import load_key
from tiebreak.cli.options import FILE, FOLDER, NEW_FILE, json_option, tell
from tiebreak.cli.terms import AddressType
from tiebreak.protocol.commitments.computation import ComputedRun
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.statement import WORDS, hexed
from tiebreak.protocol.errors import ConfigurationError

_corpus_option = click.option("--corpus", "folder", type=FOLDER, default=programs.CORPUS, help="Folder of the corpus."
                              "  [default: that of this installation]")  # fmt: skip


@click.group()
def corpus() -> None:
    """Compute programs whose roots are known, and check what other machines say of them.

    The corpus has 20 small training runs with their data and the root that each must reach, on any machine. `run`
    computes them here and writes one signed statement; `check` reads somebody's. docs/corpus.md lists what was computed
    so far, and how to add a machine.
    """


@corpus.command()
@click.argument("names", nargs=-1)
@click.option("--device", "devices", multiple=True, help="Torch device; may be repeated.  [default: the CPU and each "
              "GPU]")  # fmt: skip
@click.option("--instructions", type=click.Choice(["avx2", "none"]), help="Leave out what an older x86 CPU lacks: "
              "what is beyond AVX2, or all of AVX.")  # fmt: skip
@click.option("--note", default="", help="What a reader should know of this machine, such as that it is emulated.")
@click.option("--key", type=FILE, help="Key file of the signer.  [default: a new key that is thrown away]")
@click.option("--output", "-o", type=NEW_FILE, default=Path("corpus-statement.json"), show_default=True,
              help="The statement.")  # fmt: skip
@_corpus_option
@json_option
def run(
    names: tuple[str, ...], devices: tuple[str, ...], instructions: str | None, note: str, key: Path | None,
    output: Path, folder: Path, as_json: bool,
) -> int:  # fmt: skip
    """Compute the programs NAMES [default: all] on each device, by its kernels and by torch alone.

    Every run is compared with its root. Where one differs, the step is disputed against the integers of the
    specification, and the first instruction and operands that differ go into the statement: please report that.

    Exit codes: 0 all reach their roots, 2 some do not (the statement is written), 1 not possible as asked.
    """
    if not fullmatch(WORDS, note):
        raise ConfigurationError("expected a note of at most 255 printable ASCII characters, got another text")
    if instructions is not None and "torch" in sys.modules:
        raise ConfigurationError("expected --instructions before torch is loaded, got it afterwards; use the command")
    restricted = "" if instructions is None else statements.restrict(instructions)
    chosen = [programs.read(name, folder) for name in names or programs.names(folder)]
    owner = api.keys.new_key() if key is None else load_key(key)

    def show(made: ComputedRun) -> None:
        click.echo(statements.sentence(made), err=True)

    stated = api.stating.state(chosen, devices, note=note, restricted=restricted, on_run=show)
    signed = statements.write(output, stated, owner)
    if as_json:
        tell(signed.document(), as_json=True)
    else:
        click.echo("\n".join(signed.lines()))
        click.echo(f"{output}" + ("" if key else f": by {hexed(owner.address)}, a key that is thrown away (--key)"))
    return 2 if signed.differing else 0


@corpus.command()
@click.argument("file", type=FILE)
@click.option("--require", type=AddressType(), multiple=True, help="Ask for a signature by this address; may be "
              "repeated.")  # fmt: skip
@_corpus_option
@json_option
def check(file: Path, require: tuple[Address, ...], folder: Path, as_json: bool) -> int:
    """Check the statement FILE: its signatures, and that the roots in it are those of this corpus.

    What the machine was, and that it computed at all, is the word of whoever signed. Run the corpus yourself.

    Exit codes: 0 it holds and every program reached its root, 2 it does not, 1 not possible as asked.
    """
    signed = statements.check(file, folder, require)
    if as_json:
        tell(signed.document(), as_json=True)
    else:
        click.echo("\n".join(signed.lines()))
    return 2 if signed.differing else 0
