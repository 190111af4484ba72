"""`tiebreak serve`: a fine-tuning service that OpenAI's clients use, and the keys of its customers."""

import os
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tiebreak.api.signing import keys
from tiebreak.cli import options as opt
from tiebreak.cli.key import passphrase
from tiebreak.node.log import Log
from tiebreak.protocol.errors import ConfigurationError


@click.command()
@click.argument("folder", type=opt.NEW_FOLDER)
@click.option("--models", type=opt.FOLDER, help="Folder of the base models' folders, by whose names jobs ask for them.")
@click.option("--key", type=opt.NEW_FILE, help="Key file that signs runs, made if need be.  [default: FOLDER/key.pem]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@opt.number("--port", 1, 65535, 8000, "Port to listen on.")
@click.option("--database", metavar="URL", default="", help="PostgreSQL instead of a file in FOLDER, as "
              "postgresql+psycopg://USER@HOST/NAME.")  # fmt: skip
@click.option("--device", "devices", multiple=True, default=["cpu"], show_default=True,
              help="Torch device that trains one job at a time; may be repeated.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Threads that torch may use for a job.  [default: its choice]")
@click.option("--new-key", metavar="NAME", help="Make a customer's key, print its secret, and end.")
@click.option("--limit-key", metavar="NAME", help="Give a customer's key the limits of --limit, and end.")
@click.option("--withdraw-key", metavar="NAME", help="Let a customer's key open nothing any more, and end.")
@click.option("--list-keys", is_flag=True, help="Print the customers' keys with their limits and use, and end.")
@click.option("--limit", "limits", metavar="NAME=NUMBER", multiple=True, help="Limit of a key: requests (a minute), "
              "bytes (of files), tokens (trained, in all) or jobs (unfinished); may be repeated.")  # fmt: skip
@opt.json_option
def serve(
    folder: Path, models: Path | None, key: Path | None, host: str, port: int, database: str, new_key: str | None,
    limit_key: str | None, withdraw_key: str | None, list_keys: bool, limits: tuple[str, ...], as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Run a fine-tuning service for OpenAI's clients.

    It keeps files, jobs and results in FOLDER, trains the models in the folder --models by the code of `tiebreak
    finetune`, and signs all that it trains, so that customers can check it (`tiebreak receipt check`). It runs until
    Ctrl-C, may be killed at any time, and goes on where it was. The passphrase of its key comes from
    TIEBREAK_PASSPHRASE or a prompt. Customers need keys: --new-key and the options below it work while it runs, too.
    Needs the extra `serve`. See docs/service.md.
    """
    # What customers upload is for nobody else on this machine.
    click.get_current_context().call_on_close(partial(os.umask, os.umask(0o077)))
    # The server's libraries take a second to import, which --help does not wait for.
    stores = import_module("tiebreak.node.finetuning.service_store")
    store, name = stores.ServiceStore(folder, database), limit_key or withdraw_key
    if new_key is not None:
        made = store.add_key(new_key, stores.KeyLimits().changed(limits))
        opt.tell({"name": new_key, "secret": made}, as_json=as_json)
    elif list_keys or name is not None:
        if name is not None and not store.keys(name):
            raise ConfigurationError(f"expected the name of a key, got {name!r}; see --list-keys")
        for one in store.keys(name) if name is not None else ():
            withdrawn = one.withdrawn or withdraw_key is not None
            store.change_key(replace(one, limits=one.limits.changed(limits), withdrawn=withdrawn))
        opt.tell([
            {"name": one.id, **asdict(one.limits), "bytes used": store.used(one.id, "file"),
             "tokens used": store.used(one.id, "fine_tuning.job"), "withdrawn": one.withdrawn}
            for one in store.keys(name)
        ], as_json=as_json)  # fmt: skip
    elif models is None:
        raise ConfigurationError("expected --models, the folder of the base models' folders, got none")
    else:
        key, notes = key or folder / "key.pem", Log("service", as_json=as_json)
        secret = "" if keys.is_signer(key) else passphrase(key, confirm=not key.exists())
        if not key.exists():
            keys.save_key(keys.new_key(), key, secret)
        trainer = f"0x{keys.load_key(key, secret).address.hex()}"
        process = import_module("tiebreak.node.finetuning.process")
        own = process.Scheduler(store=store, models=models, key=key, passphrase=secret, notes=notes, **given)
        notes.info("start", f"at http://{host}:{port}/v1, signing as {trainer}")
        process.run_service(own, trainer=trainer, host=host, port=port)
