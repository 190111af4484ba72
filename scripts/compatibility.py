"""Makes files of today's formats in a new folder: `python -m scripts.compatibility FOLDER` (tests/compatibility)."""

import json
import os
import shutil
import sys
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.engine.tiny import TRAINER
from tests.protocol.town import TALKED_FALSE
from tests.tiebreak.node.hubs import arrived
from tests.tiebreak.node.test_ledger import lived
from tests.tiebreak.node.village import HUB
from tests.tiebreak.parties import PASSPHRASE, Parties, make_parties
from tests.tiebreak.test_commands_logged import make_run
from tiebreak.api.signing.keys import save_key
from tiebreak.cli.main import run, tiebreak
from tiebreak.cli.options import PASSPHRASE_VARIABLE
from tiebreak.node.hub.limits import HubLimits
from tiebreak.node.hub.post_writer import PostWriter
from tiebreak.node.hub.store import Store
from tiebreak.node.journal import Journal
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.packing import pack


def tell(*arguments: object, code: int = 0) -> Any:
    """The JSON document of a command that ends with a code."""
    with redirect_stdout(StringIO()) as out:
        found = run(tiebreak, [*map(str, arguments), "--json"])
    if found != code:
        raise SystemExit(f"expected exit code {code}, got {found}: {out.getvalue()}")
    return json.loads(out.getvalue())


def make_runs(folder: Path, scratch: Path) -> dict[str, Any]:
    """A captured job, keys, runs (finished, interrupted, false), a replay of the false one, and a certificate."""
    parties = Parties(scratch / "parties", lambda _name, _make: scratch)
    make_parties(parties.folder)
    for name in ("captured", "run"):
        shutil.copytree(parties.path(name), folder / name)
    for name in ("client.pem", "trainer.pem"):
        shutil.copy(parties.path(name), folder / name)
    parties.train(parties.signed(folder / "interrupted"), "--until", "4", "--quiet")
    parties.cheat(parties.signed(folder / "false"), 5)
    tell("audit", folder / "false", "--output", folder / "replay", code=2)
    weights = folder / "model.safetensors"
    tell("weights", folder / "run", "--output", weights, "--unsettled")
    for who in ("trainer", "client"):
        signed = ("--key", folder / f"{who}.pem", "--output", folder / "certificate.json")
        tell("certify", folder / "run", "--weights", weights, *signed)
    verified = tell("verify", weights, folder / "certificate.json")
    dispute = tell("dispute", folder / "false", folder / "replay")
    return {
        **{name: verified[name] for name in ("job", "run_root", "signatures")},
        "difference": {name: dispute[name] for name in ("loser", "committed", "correct")},
        "walk": dispute["walk"],
    }


def make_logged(folder: Path, scratch: Path) -> dict[str, Any]:
    """An interrupted run of policy `logged`, and the root with which it ends."""
    key, run_folder = folder / "logged.pem", folder / "logged"
    save_key(TRAINER, key, PASSPHRASE)
    train = ["train", "--key", str(key), "--threads", "1", "--quiet"]
    run(tiebreak, [*train, str(make_run(run_folder).path), "--until", "4"])
    finished = shutil.copytree(run_folder, scratch / "logged")
    run(tiebreak, [*train, str(finished)])
    return {"logged_root": tell("show", finished)["root"]}


def make_journal(folder: Path) -> dict[str, Any]:
    """The beginning of the journal of a trainer that loses a game."""
    kept, journal = lived(TALKED_FALSE).villagers["trainer"].kept, Journal(folder / "journal", {"role": "trainer"})
    for record in kept[:5]:
        journal.append(record)
    for content, wire in islice(kept.posts.items(), 5):
        journal.post(TALKED_FALSE.job.id, content, partial(lambda wire, _: wire, wire))
    facts = {"records": len(journal.records()), "unheard": len(journal.unheard())}
    journal.close()
    return {"journal": facts}


def make_hub(folder: Path) -> dict[str, Any]:
    """A hub's database with a job whose trainer lost a game, and what the hub says of it, which `judge` reads."""
    store = Store(f"sqlite+pysqlite:///{folder / 'hub.sqlite'}")
    writer = PostWriter(store, OFF_CHAIN, HUB, HubLimits())
    export = lived(TALKED_FALSE).export
    for entry in export:
        (answer,) = writer.take([arrived(entry.wire, entry.at)])
        if answer.row is None:
            raise SystemExit(answer.error)
    job_id = TALKED_FALSE.job.id
    (folder / "posts").write_bytes(pack([entry.pack() for entry in store.posts(0)]))
    (folder / "end").write_bytes(pack(writer.complete(job_id, writer.stand(export[-1].at)).pack()))
    store.close()
    hub = f"0x{HUB.address.hex()}"
    judged = tell("judge", folder / "posts", folder / "end", "--hub-key", hub)
    return {"hub": hub, "hub_secret": 0x4B, "judged": {name: judged[name] for name in ("posts", "debts")}}


def main() -> None:
    """Fills a new folder."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    with TemporaryDirectory() as scratch:
        os.environ |= {PASSPHRASE_VARIABLE: PASSPHRASE, "XDG_STATE_HOME": scratch}
        expected = make_runs(folder, Path(scratch)) | make_logged(folder, Path(scratch))
        expected |= make_journal(folder) | make_hub(folder)
    for lock in folder.rglob(".lock"):
        lock.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
