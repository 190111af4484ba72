"""What a party has said and what a hub has signed for outlives a power cut: it is synced before it is told.

A library that is loaded before the system's records the writes and syncs of a process in their order, and its answers
among them. A power cut may undo any write behind which no sync of its file came.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void record(const char *what, int file) {
    static ssize_t (*raw)(int, const void *, size_t);
    char link[64], path[4096], line[4200];
    const char *log = getenv("RECORD");
    if (!log) return;
    if (!raw) raw = dlsym(RTLD_NEXT, "write");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    int length = snprintf(line, sizeof line, "%s %s\n", what, file == 1 ? "answer" : path);
    raw(atoi(log), line, (size_t)length);
}

#define WRAP(result, name, parameters, arguments, what, file) \
    result name parameters { \
        result (*next) parameters = dlsym(RTLD_NEXT, #name); \
        result found = next arguments; \
        record(what, file); \
        return found; \
    }
WRAP(ssize_t, write, (int f, const void *d, size_t n), (f, d, n), "write", f)
WRAP(ssize_t, pwrite, (int f, const void *d, size_t n, off_t at), (f, d, n, at), "write", f)
WRAP(ssize_t, pwrite64, (int f, const void *d, size_t n, off64_t at), (f, d, n, at), "write", f)
WRAP(int, fsync, (int f), (f), "sync", f)
WRAP(int, fdatasync, (int f), (f), "sync", f)
"""
JOURNAL = """
import os
import sys
from pathlib import Path
from tiebreak.node.journal import Journal
from tiebreak.protocol.parties.events import AppendRecord
journal = Journal(Path(sys.argv[1]), {"role": "trainer"})
job = bytes(32)
for n in range(40):
    for act in (
        lambda: journal.append(AppendRecord(place=("n", n), data=bytes(100))),
        lambda: journal.note(n.to_bytes(8, "big")),
        lambda: journal.keep_fact("a fact", n.to_bytes(8, "big")),
        lambda: journal.post(job, n.to_bytes(32, "big"), lambda number: bytes(300)),
        lambda: journal.heard(journal.unheard()[0], n),
    ):
        act()
        os.write(1, b".")
"""
HUB = """
import os
import sys
from tests.tiebreak.node.hubs import OFFER, make_writer, steps, take
from tiebreak.node.hub.store import Store
writer = make_writer(Store(f"sqlite+pysqlite:///{sys.argv[1]}/posts.sqlite"))
for wires in ([OFFER], *([steps(2 * n), steps(2 * n + 1)] for n in range(80))):
    assert {answer.status for answer in take(writer, *wires)} == {200}
    os.write(1, b".")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("program", [JOURNAL, HUB], ids=["a party's journal", "a hub's posts"])
def test_data_is_synced_to_disk_before_it_is_acknowledged(tmp_path: Path, program: str) -> None:
    """At each answer every file of the folder is synced: after a power cut at any instant, what was told is there."""
    (tmp_path / "recorder.c").write_text(RECORDER)
    library, folder = tmp_path / "recorder.so", tmp_path / "folder"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "recorder.c", "-ldl"], check=True)
    folder.mkdir()
    reading, writing = os.pipe()
    environment = {**os.environ, "LD_PRELOAD": str(library), "RECORD": str(writing)}
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, pass_fds=[writing]) as process:
        os.close(writing)
        with os.fdopen(reading) as lines:
            record = [line.rstrip("\n").split(" ", 1) for line in lines]
    assert process.returncode == 0
    unsynced, answers, syncs = set[str](), 0, 0
    for act, name in record:
        if name == "answer":
            assert not unsynced, f"answer {answers} was given before these were synced"
            answers += 1
            assert syncs >= answers, "each of them has a sync of its own"
        elif name.startswith(str(folder)) and not name.endswith("-shm"):  # SQLite makes an index from its log again
            syncs += act == "sync"
            (unsynced.add if act == "write" else unsynced.discard)(name)
    assert answers == (200 if program == JOURNAL else 81)
    assert any(name == str(folder) for act, name in record if act == "sync"), "the new files' names are synced, too"
