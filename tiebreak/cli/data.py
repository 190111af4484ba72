"""`tiebreak data`: datasets as arrays that tasks map, the ids of arrays, and proofs about the data of a run."""

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np

from tiebreak import api
from tiebreak.api.machine import Machine
from tiebreak.cli import options as opt
from tiebreak.cli.key import load_key
from tiebreak.engine.data.disk import read_file, write_file
from tiebreak.engine.data.elements import Element
from tiebreak.engine.run.directory import Keep
from tiebreak.protocol.commitments.data_proofs import MAX_PROOF_BYTES, DataProof
from tiebreak.protocol.errors import ConfigurationError, own_file

if TYPE_CHECKING:
    from tiebreak.api.certification.removal import Removal


@click.group()
def data() -> None:
    """Import datasets, show ids of arrays, prove what a run's data had.

    A job commits to its data by their ids. Data stay on the disk: an array of any size is read in blocks to compute its
    id, and a run maps it into memory and reads what each batch needs. `import` makes such arrays of arrays of other
    types; `root` shows the id of each array. The other commands are about
    the data of a run: docs/data.md.
    """


@data.command(name="import")
@click.argument("files", nargs=-1, required=True, type=opt.NEW_FILE)
@click.option("--dtype", help="The files are raw bytes of this numpy type, such as <u2 or |u1.")
@click.option("--offset", type=click.IntRange(0), default=0, help="First byte of raw bytes.")
@click.option("--shape", help="Shape of raw bytes, such as 60000,28,28.  [default: one dimension]")
@opt.output_option("imported.safetensors", "New .safetensors file for the arrays.", kind=opt.NEW_FILE)
def import_arrays(files: tuple[Path, ...], dtype: str | None, offset: int, shape: str | None, output: Path) -> None:
    """Import FILES of arrays, or raw bytes, as data of tasks.

    FILES are .npy, .safetensors (all entries) or raw bytes. They become arrays that tasks map into memory. A job's data
    are float32 and int64, so that is what every array becomes, in one new file; the sources stay. float16, bfloat16 and
    integers of any width are converted exactly, float64 is rounded to nearest. An int64 takes 8 bytes on disk: tokens
    of 2 bytes grow fourfold. Arrays are named after their files, or as in a .safetensors file. Objects (pickled data)
    are refused. A task then says

        data="imported.safetensors"

    and reads from the disk what each batch needs of it. Imports take little memory, whatever the size.
    """
    with own_file():
        api.importing.import_files(files, output, dtype=dtype, offset=offset, shape=_shape(shape))
    _show(output, cached=False)


@data.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--no-cache", is_flag=True, help="Compute the ids again, whatever the cache has.")
@opt.json_option
def root(paths: tuple[Path, ...], no_cache: bool, as_json: bool) -> None:
    """Show name, type, shape and id of the arrays in PATHS.

    PATHS are .npy and .safetensors files. The id is what a job commits to: the root of the array's chunks, with its
    type and shape. It is computed once for each file and kept in the cache as long as the file does not change.
    """
    with own_file():
        if not as_json:
            for path in paths:
                _show(path, cached=not no_cache)
            return
        found = [one for path in paths for one in api.importing.facts(path, cached=not no_cache)]
    opt.tell([{"name": name, "type": array.element, "shape": array.shape, "id": facts.identity.hex(),
           "not_finite": facts.not_finite} for name, array, facts in found], as_json=True)  # fmt: skip


RUN: Final = opt.options(click.argument("run", type=opt.FOLDER), opt.json_option)
ROW: Final = opt.options(
    click.option("--row", type=click.IntRange(0), help="Number of the row, from 0."),
    click.option("--values", type=opt.FILE, help="Instead of --row: a .safetensors file with one array, named as an "
                 "entry of the data; the first row in which its values stand one after the other."),
)  # fmt: skip
NEAR: Final = "absent bit for bit; a row that differs in one element is another row, and may be there"
PROOF: Final = opt.output_option("data.proof", "File of the proof.", kind=opt.NEW_FILE)


@data.command()
@RUN
@ROW
@PROOF
def prove(run: Path, row: int | None, values: Path | None, output: Path, as_json: bool) -> None:
    """Prove what a row of the data of RUN is.

    The proof shows the row under the job's data root, and is all that `tiebreak data check` needs. Chunks of 512 bytes
    are shown whole: the command says if parts of other rows stand in them. Look before you send it. In a run of
    `tiebreak finetune` a row is a window of tokens or a pair of answers. Of windows, --values shows these values alone,
    which may go on from one window into the next.
    """
    opened = api.job_data.JobData(api.reading.open_directory(run))
    rows, span = opened.find(row, values)
    _write(output, opened.prove(rows[0], span), as_json=as_json)


@data.command()
@RUN
@ROW
def exposure(run: Path, row: int | None, values: Path | None, as_json: bool) -> None:
    """Show which steps of RUN read a row of its data.

    The order follows from the program and the seed, so these are all reads of that row in the job's steps, whether they
    are computed yet or not. Place counts the examples of a step, from 0.
    """
    opened = api.job_data.JobData(api.reading.open_directory(run))
    rows, _ = opened.find(row, values)
    reads = [{**read, "row": one} for one in rows for read in opened.exposure(one)]
    found = rows[0] if len(rows) == 1 else [*rows]
    opt.tell({"row": found, "steps": opened.run.job.steps, "reads": reads}, as_json=as_json)


@data.command()
@RUN
@click.option("--values", type=opt.FILE, required=True, help="A .safetensors file with one array, named as an entry of "
              "the data: a whole row of it.")  # fmt: skip
@PROOF
def absent(run: Path, values: Path, output: Path, as_json: bool) -> None:
    """Prove that no row of the data of RUN is a given one.

    The proof is two neighbours in the index of an entry, the sorted ids of all its rows. A row that differs in one bit
    is another row, so the absence of a row is not that of its near copies. Whoever checks the proof needs the data,
    or the root of the index from somebody who has computed it.
    """
    _write(output, api.job_data.JobData(api.reading.open_directory(run)).absent(values), as_json=as_json)


@data.command()
@click.argument("proof", type=opt.FILE)
@click.argument("agreed", type=click.Path(exists=True, path_type=Path))
@click.option("--before", type=opt.FOLDER, help="Folder of the run before a removal, whose receipt is the PROOF; "
              "AGREED is then the folder of the new run.")  # fmt: skip
@opt.json_option
def check(proof: Path, agreed: Path, before: Path | None, as_json: bool) -> int:
    """Check a PROOF about the data of a job.

    AGREED names the job: its certificate, or the folder of its run. With that folder, the index of an absence is
    computed again from the data there. Exit codes: 0 it holds; 2 it does not; 3 it holds if the index in it is that of
    the data, which a certificate does not tell. With --before, PROOF is the receipt of `tiebreak data unlearn`, and no
    step is computed: `tiebreak audit` does that.
    """
    if before is not None:
        runs = map(api.reading.open_directory, (before, agreed))
        _tell_removal(api.removal.check_removal(proof, *runs), agreed, as_json=as_json)
        return 0
    run = api.reading.open_directory(agreed) if agreed.is_dir() else None
    job = run.job if run else api.certificates.read_certificate(agreed).certificate.job
    found = DataProof.decode(read_file(proof, MAX_PROOF_BYTES))
    found.check(job.data_root, job.data_count)
    if found.neighbours and run:
        api.job_data.JobData(run).check_index(found)
    holds = bool(run or not found.neighbours)
    parties = {"client": f"0x{job.client.hex()}", "trainer": f"0x{job.trainer.hex()}"}
    opt.tell({"holds": holds or None, "job": job.id.hex(), **parties, **_said(found, full=as_json)}, as_json=as_json)
    return 0 if holds else 3


@data.command()
@click.argument("run", type=opt.FOLDER)
@click.option("--rows", type=opt.FILE, required=True, help="Numbers of rows, from 0, as a JSON list or lines; or a "
              ".safetensors file with one array, named as an entry: all rows with its values.")  # fmt: skip
@click.option("--output", "-o", type=opt.NEW_FOLDER, required=True,
              help="Folder for the new run and its receipt; such a run that is there is continued.")  # fmt: skip
@opt.key_option("The key file of the new run's trainer, which signs its heads and the receipt.")
@opt.keep_option("all")
@opt.machine_options("threads", "device")
@opt.json_option
def unlearn(run: Path, rows: Path, output: Path, key: Path, keep: str, machine: Machine, as_json: bool) -> None:
    """Train RUN again without some rows of its data.

    The result is, bit for bit, the run of a new job: the same program, initial state and number of steps, whose data
    lack the rows and list the order of the others. It goes on from the last checkpoint before any of the rows was read;
    the command says first how many steps that leaves. Interrupt it at any time: the same command goes on. At the end,
    OUTPUT/removal.json names both runs; `tiebreak data check --before` checks it. RUN stays as it is, with the rows.
    """
    Keep.parse(keep)
    opened, signer = api.reading.open_directory(run), load_key(key)
    removal = api.removal.Removal.of(opened, api.removal.rows_in(rows, opened))
    click.echo(removal.plan, err=True)
    removal.resume(output, signer, machine, keep=keep, progress=not as_json)
    _tell_removal(removal, output, as_json=as_json)


def _tell_removal(removal: "Removal", after: Path, *, as_json: bool) -> None:
    new = api.reading.open_directory(after)
    roots = {"before": removal.before.root().hex(), "after": new.root().hex(), "trainer": f"0x{new.job.trainer.hex()}"}
    opt.tell({"rows": [*removal.rows], "shared": removal.shared, **roots}, as_json=as_json)


def _write(output: Path, proof: DataProof, *, as_json: bool) -> None:
    write_file(output, content := proof.encode())
    opt.tell({"proof": str(output), "bytes": len(content), **_said(proof, full=as_json)}, as_json=as_json)


def _said(proof: DataProof, *, full: bool) -> dict[str, Any]:
    """The content of a proof, for documents. full: with all values."""
    found, is_row = list[dict[str, Any]](), not proof.neighbours
    for part in proof.parts:
        content = part.elements if is_row else proof.missing
        values = np.frombuffer(content, Element[part.dtype.name].numpy).tolist()
        each = prod(part.shape[1:])
        span = f"parts of rows {part.first // each} to {(part.first + part.count - 1) // each}"
        row = (span if part.row is None and part.shape[1:] else part.row) if is_row else "absent"
        found.append({
            "entry": part.name.decode(), "row": row, "first_element": part.first,
            "also_shown": part.also, "values": values if full else f"{len(values):,}: {str(values)[1:60]}",
        })  # fmt: skip
    return {"parts": found} if is_row else {"parts": found, "index": proof.index_root.hex(), "note": NEAR}


def _shape(given: str | None) -> tuple[int, ...] | None:
    try:
        return None if given is None else tuple(int(part) for part in given.split(","))
    except ValueError as error:
        raise ConfigurationError(f"expected a shape such as 60000,28,28, got {given!r}") from error


def _show(path: Path, *, cached: bool) -> None:
    """Prints a line for each array, whose id is computed now unless it is cached."""
    for name, array, facts in api.importing.facts(path, cached=cached):
        shape = " x ".join(map(str, array.shape)) or "one"
        note = f"  {facts.not_finite} not finite: no task takes it" if facts.not_finite else ""
        click.echo(f"{name:<20}{array.element:<6}{shape:<24}{facts.identity.hex()}{note}")
