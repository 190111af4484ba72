"""Statements about the corpus: the run roots that one machine computed of programs whose roots are known.

An in-toto Statement (`statement`). Its subjects are the `expected.json` of each program, under the program's name. The
predicate has

    machine     texts by name: the processor and its instruction sets, and each accelerator with its driver
    versions    texts by name: Tiebreak, Python, torch, the system, ...
    note        what a reader should know of the machine besides, such as that it is emulated; may be empty
    computed    for each run the `program`, `device` and `backend`; the `root` that it reached (or `problem`, the words
                with which it stopped), the `expected` one, whether they are `equal`, and its `milliseconds`
    difference  in a run whose root differs, where it leaves the program first (`FirstDifference`), if that was found

All of it is the word of whoever signed it; what a reader can check without that machine is that the expected roots are
those of its own corpus.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from tiebreak.protocol.commitments.dsse import Payload
from tiebreak.protocol.commitments.statement import (
    STATEMENT_TYPE,
    WORDS,
    digest_in,
    is_list,
    payload_of,
    require_same,
    statement_of,
    subject_in,
    texts_in,
)
from tiebreak.protocol.errors import EncodingError
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

PREDICATE_TYPE: Final = "urn:tiebreak:corpus:1"
MAX_RUNS: Final = 256
MAX_OPERANDS_SHOWN: Final = 16
MAX_NUMBER: Final = (1 << 53) - 1
NAME: Final = "[a-z0-9][a-z0-9-]{0,31}"
"""Names of programs, devices and back-ends."""
_WHERE: Final = "[A-Za-z0-9][A-Za-z0-9:+-]{0,31}"
_BITS: Final = "[0-9a-f]{2,16}"
_DEPTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandElement:
    """An element that a disputed one is computed from. operand: its number in the instruction. bits: in hex."""

    operand: int
    value: int
    element: int
    bits: str

    def document(self) -> dict[str, Any]:
        return {"operand": self.operand, "value": self.value, "element": self.element, "bits": self.bits}

    @classmethod
    def read(cls, item: object) -> Self:
        one = JsonObject("operand", item)
        numbers = {name: one.integer(name, 0, MAX_NUMBER) for name in ("operand", "value", "element")}
        return cls(**numbers, bits=one.text("bits", _BITS, "bits in hex"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The place where a run leaves its program, as a dispute finds it, and the operands of the element there.

    instruction: a leaf of the value tree of the step. name: of the instruction. computed, correct: the element's bits
    in hex. operands: the elements that both sides agree on, at most `MAX_OPERANDS_SHOWN` of them. of: how many there
    are in all. by: what computed the correct element.
    """

    step: int
    instruction: int
    name: str
    element: int
    computed: str
    correct: str
    operands: tuple[OperandElement, ...]
    of: int
    by: str

    def document(self) -> dict[str, Any]:
        return {
            "step": self.step, "instruction": self.instruction, "name": self.name, "element": self.element,
            "computed": self.computed, "correct": self.correct, "by": self.by, "of": self.of,
            "operands": [operand.document() for operand in self.operands],
        }  # fmt: skip

    @classmethod
    def read(cls, found: JsonObject) -> Self:
        numbers: dict[str, Any] = {
            name: found.integer(name, 0, MAX_NUMBER) for name in ("step", "instruction", "element", "of")
        }
        words: dict[str, Any] = {name: found.text(name, WORDS, "printable text") for name in ("name", "by")}
        bits: dict[str, Any] = {name: found.text(name, _BITS, "bits in hex") for name in ("computed", "correct")}
        few = f"at most {MAX_OPERANDS_SHOWN} operands"
        listed = found.take("operands", few, lambda x: isinstance(x, list) and len(x) <= MAX_OPERANDS_SHOWN)
        return cls(**numbers, **words, **bits, operands=tuple(map(OperandElement.read, listed)))

    @property
    def sentence(self) -> str:
        """The difference in words, for people."""
        shown = ", ".join(f"value {o.value}[{o.element}] = {o.bits}" for o in self.operands)
        more = f" and {self.of - len(self.operands):,} more" if self.of > len(self.operands) else ""
        return (
            f"step {self.step}, instruction {self.instruction} ({self.name}), element {self.element}: {self.computed} "
            f"instead of {self.correct} by {self.by}" + (f", from {shown}{more}" if shown else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRun:
    """A run of a program of the corpus. root: None if it stopped before its end, for the reason in `problem`."""

    program: str
    device: str
    backend: str
    root: Digest | None
    expected: Digest
    milliseconds: int
    problem: str = ""
    difference: FirstDifference | None = None

    @property
    def equal(self) -> bool:
        """Whether the run reached the expected root."""
        return self.root == self.expected

    @property
    def where(self) -> str:
        return f"{self.device}, {self.backend}"

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "program": self.program, "device": self.device, "backend": self.backend, "expected": self.expected.hex(),
            "equal": self.equal, "milliseconds": self.milliseconds,
        }  # fmt: skip
        found |= {"problem": self.problem} if self.problem else {}
        found |= {} if self.root is None else {"root": self.root.hex()}
        return found | ({} if self.difference is None else {"difference": self.difference.document()})

    @classmethod
    def read(cls, item: object) -> Self:
        one = JsonObject("run", item)
        return cls(
            program=one.text("program", NAME, "the name of a program"),
            device=one.text("device", _WHERE, "the name of a device"),
            backend=one.text("backend", _WHERE, "the name of a back-end"),
            root=digest_in(one, "root") if "root" in one else None,
            expected=digest_in(one, "expected"),
            milliseconds=one.integer("milliseconds", 0, MAX_NUMBER),
            problem=one.text("problem", WORDS, "printable text") if "problem" in one else "",
            difference=FirstDifference.read(one.inner("difference")) if "difference" in one else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusStatement:
    """The runs that one machine computed. programs: the SHA-256 of each program's `expected.json`, by its name."""

    programs: Mapping[str, Digest]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    note: str = ""
    computed: tuple[ComputedRun, ...]

    def __post_init__(self) -> None:
        if {run.program for run in self.computed} != self.programs.keys():
            raise EncodingError("statement: expected a run of each program that it names and of no other, got others")

    @property
    def payload(self) -> Payload:
        """The statement, as it is signed."""
        return payload_of(self.document())

    def document(self) -> dict[str, Any]:
        return {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": n, "digest": {"sha256": self.programs[n].hex()}} for n in sorted(self.programs)],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "machine": dict(self.machine), "versions": dict(self.versions), "note": self.note,
                "computed": [run.document() for run in self.computed],
            },
        }  # fmt: skip

    @classmethod
    def decode(cls, payload: Payload) -> Self:
        """Reads a statement; nothing in it is verified yet. Raises `EncodingError`."""
        top = statement_of(payload, PREDICATE_TYPE, _DEPTH)
        predicate = top.inner("predicate")
        few = f"1 to {MAX_RUNS} runs"
        made = cls(
            programs=dict(map(subject_in, top.take("subject", "at least one program", is_list))),
            machine=texts_in(predicate.inner("machine")),
            versions=texts_in(predicate.inner("versions")),
            note=predicate.text("note", WORDS, "printable text"),
            computed=tuple(
                map(ComputedRun.read, predicate.take("computed", few, lambda x: is_list(x) and len(x) <= MAX_RUNS))
            ),
        )
        require_same(payload, made.document(), "what its fields say")
        return made
