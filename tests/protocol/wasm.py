"""`recheck` as a WebAssembly module under wasmtime, called as a page would call it (recheck/wasm.c)."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import wasmtime

STATE, DATA, LATE = 2, 3, 4
ENGINE = wasmtime.Engine()
WIDTHS = (4, 8, 1)
"""Bytes of an element by dtype."""


class Refused(Exception):
    """The sentence with which the module refused."""


class Described(NamedTuple):
    """An instruction, as the module describes it; size: bytes of its result."""

    opcode: int
    function: int
    name: str
    size: int


class Recheck:
    """An instance of the module. Addresses and digests are as the module has them: ints, and 32 bytes."""

    def __init__(self, module: wasmtime.Module, limit: int | None = None) -> None:
        """limit: the most memory in bytes, if not the module's own."""
        self._store = wasmtime.Store(ENGINE)
        number = wasmtime.ValType.i32()
        refuse = wasmtime.Func(self._store, wasmtime.FuncType([number, number], []), self._refuse)
        self._exports: Any = wasmtime.Instance(self._store, module, [refuse]).exports(self._store)
        self._memory = self._exports["memory"]
        if limit is not None:
            self.call("limit", limit)

    @property
    def size(self) -> int:
        """Bytes of memory that the instance holds."""
        return self._memory.data_len(self._store)

    def _refuse(self, address: int, size: int) -> None:
        raise Refused(self.get(address, size).decode())

    def call(self, name: str, *arguments: int) -> Any:
        """Calls an export. Bytes are not taken here: see `put`."""
        result = self._exports[name](self._store, *arguments)
        return result % (1 << 64) if name in ("element", "work", "done") else result

    def digest(self, name: str, *arguments: int) -> bytes:
        return self.get(self.call(name, *arguments), 32)

    def get(self, address: int, size: int) -> bytes:
        return bytes(self._memory.read(self._store, address % (1 << 32), address % (1 << 32) + size))

    def put(self, data: bytes, address: int | None = None) -> int:
        """Writes bytes, to new memory if no address is given; the address."""
        address = self.call("allocate", len(data)) if address is None else address
        self._memory.write(self._store, data, address)
        return address

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Frees what is made within, after a refusal too."""
        mark = self.call("mark")
        try:
            yield
        finally:
            self.call("release", mark)

    def tensor_id(self, dtype: int, dims: Sequence[int], data: bytes, piece: int = 1 << 20) -> bytes:
        """A tensor's id, from pieces of at most so many bytes."""
        with self.scratch():
            tensor = self.call("tensor_begin", dtype, len(dims), self.put(struct.pack(f"<{len(dims)}Q", *dims)))
            room = self.call("allocate", piece)
            for at in range(0, len(data), piece):
                self.put(data[at : at + piece], room)
                self.call("tensor_add", tensor, room, len(data[at : at + piece]))
            return self.digest("tensor_id", tensor)

    def tree(self, leaves: Sequence[bytes]) -> bytes:
        with self.scratch():
            tree = self.call("tree_begin")
            for leaf in leaves:
                self.call("tree_add", tree, self.put(leaf))
            return self.digest("tree_root", tree)

    def hash(self, name: str, data: bytes) -> bytes:
        """A digest of bytes alone: keccak256, instruction_leaf."""
        with self.scratch():
            return self.digest(name, self.put(data), len(data))

    def compute(
        self, encoded: bytes, operands: Sequence[tuple[int, bytes]], size: int, step: int = 1, precision: int = 32
    ) -> bytes:
        """So many bytes of the result of an instruction on (dtype, data) of its operands."""
        with self.scratch():
            given = ((dtype, self.put(data), len(data) // WIDTHS[dtype]) for dtype, data in operands)
            place = self.put(b"".join(struct.pack("<IIQ", *one) for one in given))
            rest = (place, len(operands), step, precision, 0, 0)
            return self.get(self.call("compute", self.put(encoded), len(encoded), *rest), size)

    def program(self, encoded: bytes) -> int:
        return self.call("program", self.put(encoded), len(encoded))  # type: ignore[no-any-return]

    def describe(self, program: int, number: int) -> Described:
        fields = struct.unpack("<12IQ", self.get(self.call("describe", program, number), 56))
        return Described(*fields[:2], self.get(fields[9], fields[10]).decode(), fields[12] * WIDTHS[fields[2]])

    def split(self, program: int, file: bytes) -> tuple[int, list[bytes]]:
        """The tolerances and the log of each step of a plain log file."""
        logs, rest = [], file[4:]
        while rest:
            with self.scratch():
                size = self.call("log_size", program, self.put(rest), len(rest))
            logs.append(rest[:size])
            rest = rest[size:]
        return int.from_bytes(file[:4], "big"), logs

    def slots(self, program: int, kind: int) -> list[Described]:
        numbers = [self.call("slot", program, kind, k) for k in range(self.call("count", program, kind))]
        return [self.describe(program, number) for number in numbers]

    def fill(self, replay: int, program: int, tensors: Mapping[int, Mapping[str, bytes]]) -> tuple[bytes, bytes]:
        """Gives a replay its state and data; their roots."""
        for kind, named in tensors.items():
            for slot, described in enumerate(self.slots(program, kind)):
                if len(named.get(described.name, b"")) != described.size:
                    raise Refused(f"expected a tensor {described.name} of {described.size} bytes, got none")
                self.put(named[described.name], self.call("tensor", replay, kind, slot))
        return self.digest("inputs", replay, STATE), self.digest("inputs", replay, DATA)


class Step(NamedTuple):
    """What a step made."""

    number: int
    state: bytes
    loss: int
    values: bytes
    record: bytes


def steps(
    recheck: Recheck, replay: int, count: int, interval: int, logs: Sequence[bytes] | None = None, budget: int = 1 << 40
) -> Iterator[Step]:
    """Takes steps from the first on, along their logs if there are any; a step's values last until the next."""
    program = int.from_bytes(recheck.get(replay, 4), "little")
    root = bytes(32)
    for step in range(1, count + 1):
        if logs is not None and (step - 1) % interval == 0:
            leaves = []
            for log in logs[step - 1 : min(step - 1 + interval, count)]:
                with recheck.scratch():
                    leaves.append(recheck.digest("step_log", program, recheck.put(log), len(log)))
            root = recheck.tree(leaves)
        with recheck.scratch():
            log = logs[step - 1] if logs is not None else b""
            recheck.call("begin", replay, step, recheck.put(log) if logs is not None else 0, len(log))
            while not recheck.call("advance", replay, budget):
                pass
            state, loss = recheck.digest("state", replay), recheck.call("loss", replay) % (1 << 32)
            values = recheck.digest("values", replay)
            record = recheck.digest("record", step, recheck.put(state), loss, recheck.put(root))
            yield Step(step, state, loss, values, record)
            recheck.call("end", replay)


def open_module(path: Path) -> wasmtime.Module:
    return wasmtime.Module.from_file(ENGINE, str(path))
