"""`tiebreak weights`: the weights that come out of a job."""

from pathlib import Path

import click

from tiebreak import api
from tiebreak.cli.options import FOLDER, json_option, rpc_option, tell


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True,
              help="New .safetensors file; with --like a new or empty folder.")  # fmt: skip
@click.option("--like", type=FOLDER, help="Write the layout of `save_pretrained`: copy configuration and tokenizer "
              "from this folder of the model's, and no code.")  # fmt: skip
@rpc_option(required=False)
@click.option("--unsettled", is_flag=True, help="Take weights that are signed, without asking the chain.")
@json_option
def weights(run: Path, output: Path, like: Path | None, rpc: str | None, unsettled: bool, as_json: bool) -> None:
    """Write the final weights of RUN as .safetensors, once its job is settled.

    RUN holds what the trainer published up to its last checkpoint (`tiebreak fetch`, or a pack). The signed head is
    compared with the one that the board was settled with, the records with the head, and every tensor with the root of
    the final record; nothing is written if any of them differs. The keys are those of the module's `state_dict`, so
    `load_state_dict` and, with --like, `from_pretrained` take them.
    """
    found = api.weights.write_weights(run, output, rpc=rpc, like=like, unsettled=unsettled)
    tell({
        "written": str(found.path),
        "tensors": found.tensors,
        "parameters": found.parameters,
        "step": found.step,
        "state_root": found.state_root.hex(),
        "settled": "yes" if found.settled else "no board was asked: signed by the trainer alone",
    }, as_json=as_json)  # fmt: skip
