"""`recheck` as a WebAssembly module under wasmtime, called as a page would call it (recheck/wasm.c)."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import wasmtime

from tiebreak.protocol.program.isa import Instruction
from tiebreak.protocol.program.program import encode_instruction

STATE, DATA, LATE = 2, 3, 4
ENGINE = wasmtime.Engine()
WIDTHS = (4, 8, 1)
"""Bytes of an element by dtype."""


class Refused(Exception):
    """The sentence with which the module refused."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """An instruction, as the module describes it."""

    opcode: int
    function: int
    dtype: int
    name: str
    elements: int
    terms: int
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of its result."""
        return self.elements * WIDTHS[self.dtype]


class Recheck:
    """An instance of the module. Addresses and digests are as the module has them: ints, and 32 bytes."""

    def __init__(self, module: wasmtime.Module, limit: int | None = None) -> None:
        """limit: the most memory in bytes, if not the module's own."""
        self._store = wasmtime.Store(ENGINE)
        number = wasmtime.ValType.i32()
        refuse = wasmtime.Func(self._store, wasmtime.FuncType([number, number], []), self._refuse)
        self._exports = wasmtime.Instance(self._store, module, [refuse]).exports(self._store)
        if limit is not None:
            self.call("limit", limit)

    @cached_property
    def memory(self) -> wasmtime.Memory:
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        return memory

    @property
    def size(self) -> int:
        """Bytes of memory that the instance holds."""
        return self.memory.data_len(self._store)

    def _refuse(self, address: int, size: int) -> None:
        raise Refused(self.get(address, size).decode())

    def call(self, name: str, *arguments: int) -> Any:
        """Calls an export. Bytes are not taken here: see `put`."""
        function: Callable[..., Any] = self._exports[name]  # type: ignore[assignment]
        result = function(self._store, *arguments)
        return result % (1 << 64) if name in ("element", "work", "done") else result

    def digest(self, name: str, *arguments: int) -> bytes:
        return self.get(self.call(name, *arguments), 32)

    def get(self, address: int, size: int) -> bytes:
        return bytes(self.memory.read(self._store, address % (1 << 32), address % (1 << 32) + size))

    def put(self, data: bytes, address: int | None = None) -> int:
        """Writes bytes, to new memory if no address is given; the address."""
        address = self.call("allocate", len(data)) if address is None else address
        self.memory.write(self._store, data, address)
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
        self,
        instruction: Instruction,
        operands: Sequence[tuple[int, bytes]],
        step: int = 1,
        precision: int = 32,
        logged: tuple[int, bytes] | None = None,
    ) -> bytes:
        """The result of one instruction on (dtype, data) of its operands; logged: tolerance, and a code an element."""
        encoded = encode_instruction(instruction)
        with self.scratch():
            given = ((dtype, self.put(data), len(data) // WIDTHS[dtype]) for dtype, data in operands)
            place = self.put(b"".join(struct.pack("<IIQ", *one) for one in given))
            tolerance, codes = logged if logged is not None else (0, b"")
            rounding = (precision, tolerance, self.put(codes) if logged is not None else 0)
            at = self.call("compute", self.put(encoded), len(encoded), place, len(operands), step, *rounding)
            return self.get(at, instruction.numel * instruction.dtype.size)

    def program(self, encoded: bytes) -> int:
        return self.call("program", self.put(encoded), len(encoded))  # type: ignore[no-any-return]

    def describe(self, program: int, number: int) -> Described:
        raw = self.get(self.call("describe", program, number), 200)
        fields = struct.unpack_from("<12I2Q", raw)
        dims = struct.unpack_from(f"<{fields[3] + fields[4]}Q", raw, 64)
        name = self.get(fields[9], fields[10]).decode()
        dtype, elements, terms = fields[2], fields[12], fields[13]
        named = {"opcode": fields[0], "function": fields[1], "name": name}
        return Described(dtype=dtype, elements=elements, terms=terms, dims=dims, **named)

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


@dataclass(frozen=True)
class Step:
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
