"""Workers of one machine exchange through memory that they share. Here they are threads of one process."""

import random
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import torch

from tests.conftest import CaseCounter
from tests.engine.together import at_once
from tiebreak.engine.distributed.exchange import ExchangeError
from tiebreak.engine.distributed.nearby import LEAST, Nearby, _listener

pytestmark = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="needs Linux")
WORKERS = 3


@contextmanager
def connected(workers: int, timeout: float = 20) -> Iterator[list[Nearby]]:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(workers)]
    for a in range(workers):
        for b in range(a):
            ends[a][b], ends[b][a] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as stack:
        made = [Nearby(w, sockets, timeout) for w, sockets in enumerate(ends)]
        for each in made:
            stack.callback(each.close)
        yield made


def message(number: int, source: int, target: int | None) -> torch.Tensor:
    """What `source` sends to `target` (None: to everyone alike) in an exchange: of any length, often none."""
    drawn = random.Random(f"{number} {source} {target}")
    length = drawn.choice([0, 1, 7, 1000, LEAST // 4, 3 * LEAST])
    return torch.arange(length, dtype=torch.float32) + drawn.randrange(1000)


def test_everybody_gets_what_was_sent_in_whatever_order_it_waits(cases: CaseCounter) -> None:
    def work(worker: Nearby) -> None:
        order = random.Random(worker.worker)
        open_waits: list[tuple[Callable[[], None], list[tuple[torch.Tensor, torch.Tensor]]]] = []
        for number in range(150):
            alike = number % 3 == 0  # everyone gets the same piece
            mine = message(number, worker.worker, None)
            pieces = [mine if alike else message(number, worker.worker, w) for w in range(WORKERS)]
            wanted = [message(number, w, None if alike else worker.worker) for w in range(WORKERS)]
            into = [torch.full_like(x, -1) for x in wanted]
            open_waits.append((worker.begin(pieces, into), list(zip(into, wanted, strict=True))))
            while len(open_waits) > 10 or (number == 149 and open_waits):
                wait, checks = open_waits.pop(order.randrange(len(open_waits)))
                wait()
                for found, right in checks:
                    assert torch.equal(found, right)
                    cases(1)
        assert worker.exchanges == 150

    with connected(WORKERS) as workers:
        at_once([partial(work, worker) for worker in workers])
        # Memory is used again: at most what is on its way at once, in each of four sizes.
        assert all(len(worker._buffers) < 60 for worker in workers)


def test_no_number_of_messages_on_their_way_makes_workers_wait_for_each_other(cases: CaseCounter) -> None:
    def work(worker: Nearby) -> None:
        into = [[torch.zeros(1) for _ in range(2)] for _ in range(1500)]
        waits = [worker.begin([torch.tensor([float(n)])] * 2, into[n]) for n in range(1500)]
        for n, wait in enumerate(waits):
            wait()
            assert [x.item() for x in into[n]] == [n, n]
            cases(1)
        worker.close()  # at once, whatever the other one has yet to read

    with connected(2) as workers:
        at_once([partial(work, worker) for worker in workers])


def test_who_is_gone_is_named() -> None:
    one = torch.ones(1)
    with connected(WORKERS) as (a, b, c):
        last = c.begin([one] * 3, [torch.zeros(1) for _ in range(3)])
        wait = a.begin([one] * 3, [torch.zeros(1) for _ in range(3)])
        b.begin([one] * 3, [torch.zeros(1) for _ in range(3)])
        c.close()
        wait()  # what it has sent, it has sent
        with pytest.raises(ExchangeError, match=r"^worker 2 is gone$"):
            a.begin([one] * 3, [torch.zeros(1) for _ in range(3)])
        with pytest.raises(ExchangeError, match=r"^worker 2 is gone$"):
            b.begin([one[:0]] * 3, [torch.zeros(0), torch.zeros(0), torch.zeros(1)])()
        del last


def test_who_says_nothing_is_not_waited_for_longer_than_agreed() -> None:
    with connected(2, timeout=0.2) as (a, _):
        wait = a.begin([torch.ones(1)] * 2, [torch.zeros(1), torch.zeros(1)])
        with pytest.raises(ExchangeError, match=r"no other worker answered within 0\.2 s"):
            wait()


def test_workers_that_do_not_do_the_same_are_stopped() -> None:
    with connected(2) as (a, b):
        wait = a.begin([torch.ones(1)] * 2, [torch.zeros(1), torch.zeros(3)])
        b.begin([torch.ones(2)] * 2, [torch.zeros(1), torch.zeros(2)])
        with pytest.raises(ExchangeError, match="expected 12 bytes of worker 1, got 8"):
            wait()


def test_a_name_that_somebody_took_first_is_an_error_that_says_so() -> None:
    name = f"\0tiebreak-{random.randbytes(8).hex()}-1"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as taken:
        taken.bind(name)
        with pytest.raises(ExchangeError, match=f"expected the socket {name[1:]} to be free, got .*in use"):
            _listener(name, 2)
