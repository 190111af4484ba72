"""Certificates: these weights are the result of this program on these data from this state.

A certificate is an in-toto Statement (v1) in a DSSE envelope (`dsse`). Its subjects are the files of the weights, by
SHA-256. Its predicate has the signed job and the signed last head as they are, and what leads from the head's run root
to the final state's root and from there to each tensor of the weights:

    job           the job file in base64 (`signed`), and beside it, for people and other tools, what it says
    head          the head file in base64 (`signed`), with count and run root beside it
    finalState    the last step record (root, lossBits, logRoot) and its siblings in the run tree (`path`)
    weights       which leaves of the state tree the weights are (`places`: first leaf and number of leaves, ascending),
                  the nodes that cover all other leaves, from left to right, and how tensors are named in files: tensor
                  `x` is the state's entry `prefix` || x, but for those that `names` lists. Where a name ends with one
                  of `suffixes` (absent if there are none; the longest counts), its entry has what that stands for, the
                  same path with words inserted: `.lora_A.weight` is `.lora_A.default.weight`
    adapter       absent, or what an adapter has besides: the SHA-256 of its `configuration` file; `base`, with the
                  fields of `weights`, for the names of the base's tensors, and the places of base and adapter together;
                  and `root`, by which the base is named: that of a state whose entries are its frozen tensors, each
                  once, under its id in hex
    start         the weights that the run started from: what its first state has in the places of `weights`. `root`, by
                  which they are named as a base is, and those of the nodes that are others than in `weights`, by their
                  number there (`nodes`): with the same names, they lead to the job's first state. Absent in older ones
    others        absent, or the SHA-256 of each other file of the folder of the weights, by its path there. No run
                  computed them: the signers say that they belong to these weights
    sizes         absent, or numbers that follow from the program: of the model's `parameters`, of those that are
                  `trained`, of f32 `operations` in a step, and the shape of each entry of the `data`
    audits        seats whose auditors the board has paid; settlement: the transaction that settled the job. Both are
                  absent without a chain, and only a node of that chain can confirm them
    environment   of whoever made the certificate, as it says
    attestation   absent, or evidence that hardware gave of itself, for others to check: its `type`, its bytes in base64
                  (`evidence`), and the `nonce` that the hardware was to sign, which is the run root

There is one statement for one content: a reader builds it again and compares every byte. So a field that others read
cannot differ from the signed files that this module reads. A party signs the envelope with its own key: `keyid` is `0x`
and its address, `sig` the 65 bytes of `keys`. Signatures under other key ids are for other tools.

Numbered plan of `Certificate.verify` and of what comes before and after it: (1) the statement is the one of its content
(`decode`), (2) client and trainer signed the job, (3) the trainer signed a head of all its checkpoints, (4) the record
is the last of that head's run, and the job does not forbid its loss, (5) every signature under an address is by that
address, and the trainer's is there (`signers`), (6) the tensors fill their places of the final state, and none is left
over (`check_tensors`), (7) so do the tensors of an adapter's base together with them, and they are those of the base's
root (`check_base`), (8) and the first state has the tensors of other files in the same places (`check_start`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from re import fullmatch
from typing import Any, Final, Self

from tiebreak.protocol import trees
from tiebreak.protocol.commitments import statement as intoto
from tiebreak.protocol.commitments.dsse import Envelope, Payload, base64, from_base64
from tiebreak.protocol.commitments.eip712 import ADDRESS_BYTES, Address
from tiebreak.protocol.commitments.job import Job, SignedHead, SignedJob
from tiebreak.protocol.commitments.records import StepRecord, state_leaf, state_tree
from tiebreak.protocol.errors import EncodingError, SignatureError, VerificationError
from tiebreak.protocol.program.isa import MAX_RANK
from tiebreak.protocol.program.rounding import Policy
from tiebreak.protocol.strict_json import JsonObject
from tiebreak.protocol.tags import Digest

PREDICATE_TYPE: Final = "urn:tiebreak:certificate:1"
MAX_BLOCK: Final = (1 << 64) - 1
MAX_OPERATIONS: Final = (1 << 80) - 1
MAX_SHAPES: Final = 32
MAX_EVIDENCE_BYTES: Final = 7 << 10
"""The most bytes of an attestation: in base64 twice, as in a payload, they leave a certificate below 20 kB."""
MAX_OTHERS: Final = 100
"""The most files of a folder besides its weights; with names of usual length they take 15 kB of a certificate."""
_PART: Final = r"(?!\.{1,2}(?:/|$))[ -.0-~]+"
OTHER: Final = rf"(?!.{{256}}){_PART}(?:/{_PART})*"
"""The path of a file in a folder: printable ASCII, of at most 255 characters."""
_DEPTH: Final = 6
_EVIDENCE: Final = "[a-z0-9][a-z0-9.+-]{0,63}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """The transaction that emitted an event, by its hash, and the number of its block."""

    transaction: bytes
    block: int

    def document(self) -> dict[str, Any]:
        return {"transaction": intoto.hexed(self.transaction), "block": self.block}

    @classmethod
    def read(cls, found: JsonObject) -> Self:
        return cls(transaction=found.data("transaction", 32), block=found.integer("block", 0, MAX_BLOCK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A seat whose auditor the board has paid: its seal had the run root of the final head."""

    auditor: Address
    number: int
    paid: Logged


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers that follow from a program. See the module."""

    parameters: int
    trained: int
    operations: int
    data: Mapping[str, tuple[int, ...]]

    def document(self) -> dict[str, Any]:
        data = {name: list(shape) for name, shape in self.data.items()}
        return {"parameters": self.parameters, "trained": self.trained, "operations": self.operations, "data": data}

    @classmethod
    def read(cls, found: JsonObject) -> Self:
        shapes = found.inner("data")
        names = shapes.names()
        if len(names) > MAX_SHAPES or not all(fullmatch(intoto.WORDS, name) for name in names):
            raise EncodingError(f"sizes: expected shapes of at most {MAX_SHAPES} printable names, got others")
        return cls(
            **{name: found.integer(name, 0, MAX_OPERATIONS) for name in ("parameters", "trained", "operations")},
            data={name: tuple(shapes.take(name, "a shape", _is_shape)) for name in names},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """Remote attestation by hardware, which is passed on unread. kind: its type, such as `nvidia-gpu-eat`."""

    kind: str
    evidence: bytes

    def __post_init__(self) -> None:
        if not fullmatch(_EVIDENCE, self.kind):
            raise EncodingError(f"attestation: expected a type such as nvidia-gpu-eat, got {self.kind[:80]!r}")
        if not 0 < len(self.evidence) <= MAX_EVIDENCE_BYTES:
            raise EncodingError(
                f"attestation: expected evidence of 1 to {MAX_EVIDENCE_BYTES:,} bytes, got {len(self.evidence):,}"
            )

    @classmethod
    def read(cls, found: JsonObject) -> Self:
        return cls(kind=found.text("type"), evidence=from_base64("attestation", found.text("evidence")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The entries of a state that the tensors of some files are, and how their names map to entries. See the module."""

    prefix: str
    names: Mapping[str, str] = field(default_factory=dict)
    suffixes: Mapping[str, str] = field(default_factory=dict)
    places: tuple[tuple[int, int], ...]
    nodes: tuple[Digest, ...]

    @classmethod
    def of(
        cls, tree: trees.Tree, entries: Sequence[str], tensors: Mapping[str, str], prefix: str,
        more: Iterable[str] = (),
    ) -> Self:  # fmt: skip
        """tree: the state tree. entries: the names of its leaves. tensors: the entry of each tensor of the files.

        more: further entries, which tensors of other files prove.
        """
        at = {entry: place for place, entry in enumerate(entries)}
        shown = sorted({at[entry] for entry in (*tensors.values(), *more)})
        places = list[tuple[int, int]]()
        for place in shown:
            if places and sum(places[-1]) == place:
                places[-1] = (places[-1][0], places[-1][1] + 1)
            else:
                places.append((place, 1))
        nodes, suffixes = tuple(trees.hidden_nodes(tree, len(entries), shown)), dict[str, str]()
        for name, entry in tensors.items():
            if entry != prefix + name and (found := _suffix(name, entry.removeprefix(prefix))):
                suffixes.setdefault(*found)
        made = cls(prefix=prefix, suffixes=suffixes, places=tuple(places), nodes=nodes)
        return replace(made, names={name: entry for name, entry in tensors.items() if made.entry(name) != entry})

    def entry(self, name: str) -> str:
        """The name of the state entry that is the tensor of this name."""
        if name in self.names:
            return self.names[name]
        end = max((end for end in self.suffixes if name.endswith(end)), key=len, default="")
        return self.prefix + name.removesuffix(end) + self.suffixes.get(end, "")

    def document(self, leaves: int) -> dict[str, Any]:
        """The fields of the statement. leaves: the number of entries of the state."""
        return {
            "entries": self.count, "of": leaves, "prefix": self.prefix, "names": dict(self.names),
            **({"suffixes": dict(self.suffixes)} if self.suffixes else {}),
            "places": [list(place) for place in self.places], "nodes": [node.hex() for node in self.nodes],
        }  # fmt: skip

    @property
    def count(self) -> int:
        return sum(count for _, count in self.places)

    def check(self, leaves: int) -> None:
        """Raise `VerificationError` unless the places fit a state with this many entries."""
        ends = [0, *(first + count for first, count in self.places)]
        begins = [*(first for first, _ in self.places), leaves]
        if any(end > begin for end, begin in zip(ends, begins, strict=True)) or not all(n for _, n in self.places):
            raise VerificationError(f"weights: expected ascending places below {leaves}, got {str(self.places)[:200]}")
        for end, replaced in self.suffixes.items():
            if _suffix(f"x{end}", f"x{replaced}") != (end, replaced):
                raise VerificationError(f"weights: expected {end} with words inserted in it, got {replaced}")

    def entries(self, ids: Mapping[str, Digest]) -> dict[str, Digest]:
        """The ids of tensors by their entries. ids: by their names in all files. Raises `VerificationError`."""
        found: dict[str, Digest] = {}
        for name, tensor in ids.items():
            entry = self.entry(name)
            if found.setdefault(entry, tensor) != tensor:
                raise VerificationError(f"weights: expected one tensor for {entry}, got two, one of them {name}")
        return found

    def root(self, leaves: int, ids: Mapping[str, Digest], more: Mapping[str, Digest] = {}) -> Digest:
        """The root of the state whose entries these tensors are.

        leaves: the number of entries of the state. ids: see `entries`. more: tensors of other files, by their entries;
        they count where both have one. Raises `VerificationError` if these are not the tensors' places.
        """
        found = {**self.entries(ids), **more}
        if len(found) != self.count:
            raise VerificationError(f"weights: expected {self.count} tensors of the state, got {len(found)}")
        self.check(leaves)
        places = [place for first, count in self.places for place in range(first, first + count)]
        at = {place: state_leaf(name, found[name]) for place, name in zip(places, sorted(found), strict=True)}
        return trees.root_of_shown(leaves, at, self.nodes)


def _suffix(name: str, entry: str) -> tuple[str, str] | None:
    """(suffix of a name from a dot on, its replacement in the entry) if only words are inserted there; else None."""
    words, more = name.split("."), entry.split(".")
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, more, strict=False)))
    inserted = len(more) - len(words)
    if same < 2 or inserted < 1 or words[same:] != more[same + inserted :]:
        return None
    return ".".join(["", *words[same - 1 :]]), ".".join(["", *more[same - 1 :]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The configuration and the base of an adapter, whose own tensors are a certificate's weights. See the module."""

    configuration: Digest
    root: Digest
    base: Weights

    @staticmethod
    def root_of(tensors: Iterable[Digest]) -> Digest:
        """The root by which a base is named, over the ids of its frozen tensors."""
        return state_tree({tensor.hex(): tensor for tensor in tensors}).root


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The weights that a run started from. nodes: for its first state what `Weights.nodes` are for the final one."""

    root: Digest
    nodes: tuple[Digest, ...]

    @classmethod
    def of(cls, first: Mapping[str, Digest], tensors: Mapping[str, str]) -> Self:
        """first: the ids of the first state's tensors, by their entries. tensors: as those of `Weights.of`."""
        root = Adapter.root_of(first[entry] for entry in tensors.values())
        return cls(root=root, nodes=Weights.of(state_tree(first), sorted(first), tensors, "").nodes)

    def document(self, final: Weights) -> dict[str, Any]:
        pairs = enumerate(zip(self.nodes, final.nodes, strict=True))
        return {"root": self.root.hex(), "nodes": {str(n): own.hex() for n, (own, last) in pairs if own != last}}

    @classmethod
    def read(cls, found: JsonObject, final: Weights) -> Self:
        root, own = intoto.digest_in(found, "root"), found.inner("nodes")
        nodes = (intoto.digest_in(own, str(n)) if str(n) in own else node for n, node in enumerate(final.nodes))
        return cls(root=root, nodes=tuple(nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The content of a statement. files: the SHA-256 of each file of the weights, by its name."""

    agreement: SignedJob
    head: SignedHead
    record: StepRecord
    path: tuple[Digest, ...]
    files: Mapping[str, Digest]
    weights: Weights
    audits: tuple[Seat, ...] = ()
    settlement: Logged | None = None
    adapter: Adapter | None = None
    start: Origin | None = None
    sizes: Sizes | None = None
    others: Mapping[str, Digest] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    attestation: Attestation | None = None

    @property
    def job(self) -> Job:
        return self.agreement.job

    def verify(self) -> None:
        """Raise `VerificationError` unless job and head are signed, and the record is the head's last."""
        if not self.agreement.domain.chain_id and (self.settlement or self.audits):
            raise VerificationError("certificate: expected nothing that a chain has settled or paid, as it names none")
        self.agreement.verify()  # (2)
        job, head = self.job, self.head.head
        self.head.verify(job, self.agreement.domain)  # (3)
        if head.count != job.checkpoints:
            raise VerificationError(f"head: expected one of all {job.checkpoints} checkpoints, got {head.count}")
        trees.verify(head.run_root, job.run_depth, head.count - 1, self.record.digest, self.path)  # (4)
        job.check_loss(self.record)
        self.weights.check(job.state_count)
        if self.adapter is not None:
            self.adapter.base.check(job.state_count)

    def signers(self, envelope: Envelope) -> list[Address]:
        """The signers of the statement. Raises `SignatureError` if a signature is false, or none is the trainer's."""
        found = intoto.signers_of(envelope, "certificate")  # (5)
        if self.job.trainer not in found:
            trainer = intoto.hexed(self.job.trainer)
            raise SignatureError(f"certificate: expected a signature by its trainer, {trainer}, got none")
        return found

    def check_tensors(self, ids: Mapping[str, Digest]) -> None:
        """Raise `VerificationError` unless these are the final state's tensors, all that the certificate is for.

        ids: the id of each tensor of all files, by its name there.
        """
        root = self.weights.root(self.job.state_count, ids)
        self._check_root("weights", root, self.record.state_root, "the run ended with")  # (6)

    def check_base(self, ids: Mapping[str, Digest], base: Mapping[str, Digest]) -> None:
        """Raise `VerificationError` unless an adapter is one of this base, and the final state has both.

        ids, base: the id of each tensor of all files, by its name there.
        """
        if self.adapter is None:
            raise VerificationError("certificate: expected one for an adapter, which has a base, got one for a model")
        own, weights = self.weights.entries(ids), self.adapter.base
        found = weights.root(self.job.state_count, base, own)
        self._check_root("base", found, self.record.state_root, "the run ended with")  # (7)
        frozen = [tensor for entry, tensor in weights.entries(base).items() if entry not in own]
        _check_name("base", self.adapter.root, frozen)

    def check_start(self, ids: Mapping[str, Digest]) -> None:
        """Raise `VerificationError` unless the run started from these weights, all that it ended with.

        ids: the id of each tensor of all files, by its name there, which is that of the same tensor after training.
        """
        if self.start is None:
            raise VerificationError("certificate: expected one that names what its run started from, got an older one")
        root = replace(self.weights, nodes=self.start.nodes).root(self.job.state_count, ids)
        self._check_root("start", root, self.job.initial_state_root, "the run started from")  # (8)
        _check_name("start", self.start.root, self.weights.entries(ids).values())

    @staticmethod
    def _check_root(what: str, root: Digest, expected: Digest, run: str) -> None:
        if root != expected:
            raise VerificationError(
                f"{what}: expected tensors under state root {expected.hex()}, got {root.hex()}: a tensor has another "
                f"name, type, shape or value than {run}"
            )

    # ------------------------------------------------------------ the statement

    @property
    def payload(self) -> Payload:
        """The statement, as it is signed."""
        return intoto.payload_of(self.document())

    def document(self) -> dict[str, Any]:
        """The statement: with sorted names and without spaces, it is what is signed."""
        job, domain, head, record = self.job, self.agreement.domain, self.head.head, self.record
        predicate: dict[str, Any] = {
            "job": {
                "id": job.id.hex(), "client": intoto.hexed(job.client), "trainer": intoto.hexed(job.trainer),
                "chain": str(domain.chain_id), "board": intoto.hexed(domain.contract), "data": job.data_root.hex(),
                "program": job.program_root.hex(), "firstState": job.initial_state_root.hex(), "steps": job.steps,
                "checkpoints": job.checkpoints, "policy": Policy(job.policy).name.lower(), "precision": job.precision,
                "signed": base64(self.agreement.encode()),
            },
            "head": {"count": head.count, "runRoot": head.run_root.hex(), "signed": base64(self.head.encode())},
            "finalState": {
                "root": record.state_root.hex(), "lossBits": record.loss_bits, "logRoot": record.log_root.hex(),
                "path": [node.hex() for node in self.path],
            },
            "weights": self.weights.document(job.state_count),
            "environment": dict(self.environment),
        }  # fmt: skip
        if self.audits:
            predicate["audits"] = [
                {"auditor": intoto.hexed(seat.auditor), "seat": seat.number, **seat.paid.document()}
                for seat in self.audits
            ]
        if self.settlement is not None:
            predicate["settlement"] = self.settlement.document()
        if self.adapter is not None:
            predicate["adapter"] = {
                "configuration": self.adapter.configuration.hex(), "root": self.adapter.root.hex(),
                "base": self.adapter.base.document(job.state_count),
            }  # fmt: skip
        if self.start is not None:
            predicate["start"] = self.start.document(self.weights)
        if self.sizes is not None:
            predicate["sizes"] = self.sizes.document()
        if self.others is not None:
            predicate["others"] = {name: digest.hex() for name, digest in self.others.items()}
        if (found := self.attestation) is not None:
            predicate["attestation"] = {
                "type": found.kind, "nonce": head.run_root.hex(), "evidence": base64(found.evidence),
            }  # fmt: skip
        return intoto.document_of(self.files, PREDICATE_TYPE, predicate)

    @classmethod
    def decode(cls, payload: Payload) -> Self:
        """Reads a statement; nothing in it is verified yet. Raises `VerificationError`."""
        top = intoto.statement_of(payload, PREDICATE_TYPE, _DEPTH)
        predicate = top.inner("predicate")
        job, head, final = (predicate.inner(name) for name in ("job", "head", "finalState"))
        agreement = SignedJob.decode(from_base64("job, signed", job.text("signed")))
        audits = predicate.take("audits", "seats", intoto.is_list) if "audits" in predicate else ()
        weights = _weights(predicate.inner("weights"))
        made = cls(
            agreement=agreement,
            head=SignedHead.decode(from_base64("head, signed", head.text("signed"))),
            record=StepRecord(
                step=agreement.job.steps, state_root=intoto.digest_in(final, "root"),
                loss_bits=final.integer("lossBits", 0, (1 << 32) - 1), log_root=intoto.digest_in(final, "logRoot"),
            ),
            path=intoto.digests_in(final, "path"),
            files=dict(intoto.subject_in(item) for item in top.take("subject", "at least one file", intoto.is_list)),
            weights=weights,
            audits=tuple(map(_seat, audits)),
            settlement=Logged.read(predicate.inner("settlement")) if "settlement" in predicate else None,
            adapter=_adapter(predicate.inner("adapter")) if "adapter" in predicate else None,
            start=Origin.read(predicate.inner("start"), weights) if "start" in predicate else None,
            sizes=Sizes.read(predicate.inner("sizes")) if "sizes" in predicate else None,
            others=_others(predicate.inner("others")) if "others" in predicate else None,
            environment=intoto.texts_in(predicate.inner("environment")),
            attestation=Attestation.read(predicate.inner("attestation")) if "attestation" in predicate else None,
        )  # fmt: skip
        intoto.require_same(payload, made.document(), "what the signed job and head in it say")  # (1)
        return made


def _check_name(what: str, expected: Digest, tensors: Iterable[Digest]) -> None:
    """Raise `VerificationError` unless tensors have the root by which they are named."""
    if (root := Adapter.root_of(tensors)) != expected:
        raise VerificationError(f"{what}: expected the root {expected.hex()}, got {root.hex()}")


def _seat(item: object) -> Seat:
    one = JsonObject("seat", item)
    auditor = Address(one.data("auditor", ADDRESS_BYTES))
    return Seat(auditor=auditor, number=one.integer("seat", 0, 255), paid=Logged.read(one))


def _weights(found: JsonObject) -> Weights:
    return Weights(
        prefix=found.text("prefix", intoto.WORDS, "printable text"),
        names=intoto.texts_in(found.inner("names")),
        suffixes=intoto.texts_in(found.inner("suffixes")) if "suffixes" in found else {},
        places=tuple((first, count) for first, count in found.take("places", "pairs of integers", _are_places)),
        nodes=intoto.digests_in(found, "nodes"),
    )


def _adapter(found: JsonObject) -> Adapter:
    return Adapter(
        configuration=intoto.digest_in(found, "configuration"),
        root=intoto.digest_in(found, "root"),
        base=_weights(found.inner("base")),
    )


def _others(found: JsonObject) -> dict[str, Digest]:
    names = found.names()
    if len(names) > MAX_OTHERS or not all(fullmatch(OTHER, name) for name in names):
        raise EncodingError(
            f"others: expected at most {MAX_OTHERS} paths in a folder, got {len(names)}, or other names"
        )
    return {name: intoto.digest_in(found, name) for name in names}


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_RANK and all(
        type(size) is int and 0 <= size <= MAX_OPERATIONS for size in value
    )  # fmt: skip


def _are_places(value: object) -> bool:
    return intoto.is_list(value) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(x) is int and 0 <= x < 1 << 32 for x in pair)
        for pair in value  # type: ignore[attr-defined]
    )
