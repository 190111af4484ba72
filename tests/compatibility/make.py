"""Makes files of today's formats in a new folder: `python -m tests.compatibility.make FOLDER`; README.md says what."""

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

from tests.tiebreak import parties
from tests.tiebreak import test_commands_logged as logged
from tests.tiebreak.node import hubs
from tests.tiebreak.node import test_ledger as ledger
from tiebreak.cli.main import run, tiebreak
from tiebreak.node.journal import Journal


def tell(*arguments: object, code: int = 0) -> Any:
    """The last JSON document of a command that ends with a code."""
    with redirect_stdout(StringIO()) as out:
        found = run(tiebreak, [*map(str, arguments), "--json"])
    if found != code:
        raise SystemExit(f"expected exit code {code}, got {found}: {out.getvalue()}")
    return json.loads(out.getvalue())


def make_runs(folder: Path, scratch: Path) -> dict[str, Any]:
    """A captured job, keys, runs (finished, interrupted, false), a replay of the false one, and a certificate."""
    made = parties.Parties(scratch / "parties", lambda _name, _make: scratch)
    parties.make_parties(made.folder)
    for name in ("captured", "run"):
        shutil.copytree(made.path(name), folder / name)
    for name in ("client.pem", "trainer.pem"):
        shutil.copy(made.path(name), folder)
    made.train(made.signed(folder / "interrupted"), "--until", "4", "--quiet")
    made.cheat(made.signed(folder / "false"), 5)
    tell("audit", folder / "false", "--output", folder / "replay", code=2)
    weights, certificate = folder / "model.safetensors", folder / "certificate.json"
    tell("weights", folder / "run", "--output", weights, "--unsettled")
    for who in ("trainer", "client"):
        key = folder / f"{who}.pem"
        tell("certify", folder / "run", "--weights", weights, "--key", key, "--output", certificate)
    verified, dispute = tell("verify", weights, certificate), tell("dispute", folder / "false", folder / "replay")
    difference = {name: dispute[name] for name in ("loser", "committed", "correct")}
    found = {name: verified[name] for name in ("job", "run_root", "signatures")}
    return found | {"difference": difference, "walk": dispute["walk"]}


def make_logged(folder: Path, scratch: Path) -> dict[str, Any]:
    """An interrupted run of policy `logged`, and the root with which it ends."""
    key, begun = folder / "logged.pem", logged.make_run(folder / "logged").path
    logged.save_key(logged.TRAINER, key, parties.PASSPHRASE)
    train = ["train", "--key", str(key), "--threads", "1", "--quiet"]
    run(tiebreak, [*train, str(begun), "--until", "4"])
    finished = shutil.copytree(begun, scratch / "logged")
    run(tiebreak, [*train, str(finished)])
    return {"logged_root": tell("show", finished)["root"]}


def make_hub(folder: Path) -> dict[str, Any]:
    """A hub's database with a job whose trainer lost a game, its transcript, and the trainer's journal as it began."""
    lived, job = ledger.lived(ledger.TALKED_FALSE), ledger.TALKED_FALSE.job
    store = hubs.Store(f"sqlite+pysqlite:///{folder / 'hub.sqlite'}")
    writer = hubs.PostWriter(store, ledger.OFF_CHAIN, ledger.HUB, hubs.HubLimits())
    answers = writer.take([hubs.arrived(entry.wire, entry.at) for entry in lived.export])
    if not all(answer.row for answer in answers):
        raise SystemExit(f"expected a place for each post, got {answers}")
    (folder / "posts").write_bytes(ledger.pack([entry.pack() for entry in store.posts(0)]))
    end = writer.complete(job.id, writer.stand(lived.export[-1].at))
    (folder / "end").write_bytes(ledger.pack(end.pack()))
    store.close()
    kept, journal = lived.villagers["trainer"].kept, Journal(folder / "journal", {"role": "trainer"})
    for record in kept[:5]:
        journal.append(record)
    for content, wire in islice(kept.posts.items(), 5):
        journal.post(job.id, content, partial(lambda wire, _: wire, wire))
    counts = {"records": len(journal.records()), "unheard": len(journal.unheard())}
    journal.close()
    hub = f"0x{ledger.HUB.address.hex()}"
    judged = tell("judge", folder / "posts", folder / "end", "--hub-key", hub)
    judged = {name: judged[name] for name in ("posts", "debts")}
    return {"journal": counts, "hub": hub, "hub_secret": 0x4B, "judged": judged}


def main() -> None:
    """Fills a new folder."""
    folder = Path(sys.argv[1])
    folder.mkdir()
    with TemporaryDirectory() as scratch:
        os.environ |= {logged.PASSPHRASE_VARIABLE: parties.PASSPHRASE, "XDG_STATE_HOME": scratch}
        expected = make_runs(folder, Path(scratch)) | make_logged(folder, Path(scratch)) | make_hub(folder)
    for lock in folder.rglob(".lock"):
        lock.unlink()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
