"""What a fine-tuning service keeps, in SQLite and in PostgreSQL, is the same to those who ask."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tiebreak.node.finetuning.service_store import KeyLimits, ServiceStore
from tiebreak.protocol.errors import ConfigurationError

JOB, EVENT = "fine_tuning.job", "fine_tuning.job.event"


def test_store_answers_alike_from_each_database(tmp_path: Path, database: str) -> None:
    made = ServiceStore(tmp_path / "service", database)
    secret = made.add_key("ann", KeyLimits().changed(["tokens=7", "bytes=99999999999"]))
    made.add_key("bob", KeyLimits())
    with pytest.raises(ConfigurationError, match="a new name"):
        made.add_key("ann", KeyLimits())
    (ann,) = made.keys(secret=secret)
    assert (ann.id, ann.limits.tokens, ann.limits.bytes, made.keys(secret="sk-other")) == ("ann", 7, 99_999_999_999, [])
    made.change_key(replace(ann, withdrawn=True))
    assert [(key.id, key.withdrawn) for key in made.keys(None)] == [("ann", True), ("bob", False)]
    jobs = [made.add(owner, {"object": JOB, "status": "queued"})["id"] for owner in ("ann", "bob", "ann")]
    events = [made.add("ann", {"object": EVENT, "message": str(n)}, of=jobs[0])["id"] for n in range(3)]
    assert [body["id"] for _, body in made.objects("ann", EVENT, of=jobs[0], limit=2)] == events[:0:-1]
    assert [body["id"] for _, body in made.objects("ann", EVENT, of=jobs[0], after=events[1])] == events[:1]
    assert made.get("bob", JOB, jobs[0]) is None
    assert [owner for owner, _ in made.objects(None, JOB, newest_first=False)] == ["ann", "bob", "ann"]
    assert made.change(jobs[0], {"running"}, status="failed") is None
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda _: made.change(jobs[0], {"queued"}, amount=1 << 40, status="running"), range(32)))
    assert sum(one is not None for one in won) == 1, "one of many changes of a status is made"
    assert [body["id"] for _, body in made.objects(None, JOB, statuses=["queued"], newest_first=False)] == jobs[1:]
    assert (made.used("ann", JOB), made.used("bob", JOB), made.used("ann", "file")) == (1 << 40, 0, 0)
    made.close()
    again = ServiceStore(tmp_path / "service", database)
    assert again.get("ann", JOB, jobs[0]) == {**(again.get(None, JOB, jobs[0]) or {}), "status": "running"}
    again.remove(jobs[0])
    assert again.get(None, JOB, jobs[0]) is None
    again.close()
