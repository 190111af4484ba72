"""The journal: what survives, who may open it, and what is sent again."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tiebreak.node.journal import Journal, read_place, write_place
from tiebreak.protocol.errors import ConfigurationError, EncodingError, StateError
from tiebreak.protocol.parties.events import AppendRecord
from tiebreak.protocol.tags import Digest

OWN = {"role": "trainer", "chain": "31337"}
JOB, OTHER = Digest(bytes(32)), Digest(b"\x01" * 32)


def test_journal_keeps_record_order_and_the_first_record_of_a_place(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWN)
    said = AppendRecord(place=("said", b"head", 1 << 40, 0), data=b"")
    kept = [AppendRecord(place=("head", JOB, 1), data=b"a"), said]
    for record in (*kept, AppendRecord(place=("head", JOB, 1), data=b"b")):
        journal.append(record)
    journal.close()
    assert Journal(tmp_path, OWN).records() == kept


def test_record_places_round_trip_and_damaged_ones_are_refused(cases: Callable[[], None]) -> None:
    for place in (("a", b"a", 7), (), ("ä", b"", 0, (1 << 64) - 1)):
        assert read_place(write_place(place)) == place
        cases()
    with pytest.raises(EncodingError, match="expected a place"):
        read_place(b"\x91\x90")


def test_a_journal_folder_is_locked_to_one_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWN)
    with pytest.raises(StateError, match="in use"):
        Journal(tmp_path, OWN)
    journal.close()
    Journal(tmp_path, OWN).close()


def test_a_journal_of_another_chain_is_refused_without_writing(tmp_path: Path) -> None:
    Journal(tmp_path, OWN).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match=r"expected the folder of chain 31337, got chain 1;"):
        Journal(tmp_path, OWN | {"chain": "1"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    Journal(tmp_path, OWN).close()


def test_a_file_that_is_not_a_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"no database at all, but long enough to be taken for one" * 40)
    with pytest.raises(ConfigurationError, match="expected a journal"):
        Journal(tmp_path, OWN)


def whole(journal: Journal) -> list[object]:
    facts = [journal.fact(name) for name in ("belongs role", "belongs chain", "secret")]
    return [facts, journal.records(), journal.unheard(), journal.last_heard(), journal.notes()]


def test_a_flipped_bit_in_a_journal_is_refused_or_harmless(tmp_path: Path, cases: Callable[[], None]) -> None:
    journal, rng = Journal(tmp_path / "own", OWN), Random(1)
    journal.keep_fact("secret", rng.randbytes(32))
    for number in range(30):
        journal.append(AppendRecord(place=("said", JOB, number), data=rng.randbytes(200)))
        journal.post(JOB, rng.randbytes(32), lambda _: rng.randbytes(150))
        journal.note(rng.randbytes(90))
    for waiting in journal.unheard()[:9]:
        journal.heard(waiting, 7 + waiting.id)
    said, refused = whole(journal), 0
    journal.close()
    content, other = (tmp_path / "own" / "journal.sqlite").read_bytes(), tmp_path / "other"
    other.mkdir()
    for _ in range(150):
        flipped, bit = bytearray(content), rng.randrange(8 * len(content))
        flipped[bit // 8] ^= 1 << bit % 8
        (other / "journal.sqlite").write_bytes(flipped)
        cases()
        try:
            opened = Journal(other, OWN)
        except ConfigurationError:
            refused += 1
            continue
        assert whole(opened) == said, bit
        opened.close()
    assert refused > 50, "much of the file says something"


def test_journals_of_another_format_and_missing_journals_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as old:
        old.execute("CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    with pytest.raises(ConfigurationError, match="expected a journal of format 1, got 0"):
        Journal(tmp_path, OWN)
    (tmp_path / "journal.sqlite").unlink()
    (tmp_path / "jobs" / "ab").mkdir(parents=True)
    (tmp_path / "jobs" / "ab" / "offer.bin").touch()
    for _ in range(2):  # the folder was open before
        with pytest.raises(ConfigurationError, match="which says what was signed about the jobs beside it, got none"):
            Journal(tmp_path, OWN)
        assert not (tmp_path / "journal.sqlite").exists()
    (tmp_path / "lock").unlink()
    Journal(tmp_path, OWN).close()  # a client's first offer is there before its journal
    for name in ("journal.sqlite", "lock"):
        (tmp_path / name).unlink()
    (tmp_path / "jobs" / "ab" / "job.bin").touch()
    with pytest.raises(ConfigurationError, match="start a new folder with a new key"):
        Journal(tmp_path, OWN)


def test_a_post_is_numbered_once_and_queued_until_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWN)
    assert journal.post(JOB, b"x", lambda number: b"x%d" % number)
    assert journal.post(JOB, b"y", lambda number: b"y%d" % number)
    assert journal.post(OTHER, b"z", lambda number: b"z%d" % number)
    assert not journal.post(JOB, b"x", lambda number: b"again%d" % number)
    waiting = journal.unheard()
    assert [one.wire for one in waiting] == [b"x0", b"y1", b"z0"]
    assert journal.last_heard() is None
    journal.heard(waiting[0], 5)
    journal.heard(waiting[1], -1)
    assert [one.wire for one in journal.unheard()] == [b"z0"]
    assert journal.last_heard() == (5, b"x0")
    journal.say_all_again()
    assert journal.last_heard() is None
    assert [one.wire for one in journal.unheard()] == [b"x0", b"z0"]


def test_a_journal_fact_is_generated_only_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, OWN)
    made = iter([b"one", b"two"])
    assert journal.fact_once("secret", made.__next__) == b"one"
    assert journal.fact_once("secret", made.__next__) == b"one"
    assert journal.fact("nothing") is None
