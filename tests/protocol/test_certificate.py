"""Certificates: one statement for one content, and whatever is altered, stripped or mixed in does not hold."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.certified import (
    AUDITOR,
    CLIENT,
    DOMAIN,
    PREFIX,
    STRANGER,
    TRAINER,
    certificate,
    envelope,
    root,
    tensors,
)
from tiebreak.protocol.commitments.certificate import (
    MAX_EVIDENCE_BYTES,
    MAX_OTHERS,
    Adapter,
    Attestation,
    Certificate,
    Weights,
)
from tiebreak.protocol.commitments.dsse import MAX_ENVELOPE_BYTES, Envelope, Payload, base64, from_base64
from tiebreak.protocol.commitments.eip712 import OFF_CHAIN
from tiebreak.protocol.commitments.job import FINITE_LOSSES, SignedHead
from tiebreak.protocol.commitments.records import StepRecord, state_tree
from tiebreak.protocol.commitments.statement import sign
from tiebreak.protocol.errors import EncodingError, ForbiddenLoss, ProofError, SignatureError, VerificationError
from tiebreak.protocol.numbers.float32 import NAN_BITS
from tiebreak.protocol.tags import Digest

MADE = certificate()


def read(data: bytes) -> Certificate:
    """All that can be checked without the weights."""
    found = Envelope.decode(data)
    made = Certificate.decode(found.payload)
    made.verify()
    made.signers(found)
    return made


def signed_again(statement: bytes) -> bytes:
    unsigned = Envelope(payload=Payload(kind=MADE.payload.kind, data=statement))
    return sign(sign(unsigned, TRAINER), CLIENT).encode()


def test_certificate_round_trips_through_its_encoding() -> None:
    data = envelope(MADE, TRAINER, CLIENT, AUDITOR).encode()
    assert read(data) == MADE
    assert Envelope.decode(data).encode() == data
    assert MADE.signers(Envelope.decode(data)) == [key.address for key in (TRAINER, CLIENT, AUDITOR)]
    MADE.check_tensors(tensors(5))
    bare = certificate(audits=(), settlement=None, environment={}, attestation=None)
    assert read(envelope(bare).encode()) == bare


def test_certificate_lists_other_files_only_when_there_are_any() -> None:
    others = {"config.json": Digest(b"\x01" * 32), ".gitattributes": Digest(bytes(32)), "a/b c.json": Digest(bytes(32))}
    for named in ({}, others):
        made = replace(MADE, others=named)
        assert read(envelope(made, TRAINER).encode()) == made
        assert made.document()["predicate"]["others"] == {name: digest.hex() for name, digest in named.items()}
    assert "others" not in MADE.document()["predicate"], "those who signed before signed the same bytes"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "/a", "a/", "a//b", "../a", "a/..", "a/./b", "a\n", "\u00e9", "a\u001b[2J", "x" * 256, None],
    ids=ascii,
)
def test_certificate_refuses_unsafe_names_of_other_files(name: str | None) -> None:
    names = [f"{number}" for number in range(MAX_OTHERS + 1)] if name is None else [name]
    made = replace(MADE, others=dict.fromkeys(names, Digest(bytes(32))))
    with pytest.raises(EncodingError, match="others: expected at most 100 paths in a folder"):
        read(envelope(made, TRAINER).encode())


def test_dsse_pre_authentication_encoding_matches_the_specification() -> None:
    payload = Payload(kind="http://example.com/HelloWorld", data=b"hello world")
    assert payload.pae == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_a_certificate_of_a_million_steps_is_small() -> None:
    evidence = Attestation(kind="made-up", evidence=bytes(MAX_EVIDENCE_BYTES))
    made = certificate(steps=1_000_000, interval=1, count=1000, attestation=evidence)
    assert len(made.path) == 20
    data = envelope(made, *(TRAINER, CLIENT, AUDITOR, STRANGER)).encode()
    assert len(data) < 20_000
    read(data).check_tensors(tensors(1000))


def test_certificate_fits_a_lora_adapter_of_126_layers() -> None:
    """On all linear layers, as PEFT names them, between the frozen tensors that it adapts, with moments and a start."""
    linear = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    paths = [f"base_model.model.model.layers.{i}.{name}" for i in range(126) for name in linear]
    own = {f"{p}.lora_{x}.weight": f"model.{p}.lora_{x}.default.weight" for p in paths for x in "AB"}
    moments = [f"optimizer.{kind}.{entry}" for kind in ("exp_avg", "exp_avg_sq") for entry in own.values()]
    entries = sorted([*own.values(), *moments, *(f"model.{p}.base_layer.weight" for p in paths)])
    ids = {entry: Digest(sha256(entry.encode()).digest()) for entry in entries}
    tree = state_tree(ids)
    weights = Weights.of(tree, entries, own, "model.")
    first = {entry: root(f"first {entry}") for entry in (*own.values(), *moments)}
    attestation = Attestation(kind="x", evidence=bytes(MAX_EVIDENCE_BYTES))
    made = certificate(ids=ids, first=first, weights=weights, attestation=attestation)
    data = envelope(made, TRAINER, CLIENT, AUDITOR).encode()
    bare = envelope(replace(made, start=None), TRAINER, CLIENT, AUDITOR).encode()
    assert 100_000 < len(data) < min(len(bare) + 1000, MAX_ENVELOPE_BYTES)
    read_again = Certificate.decode(Envelope.decode(data).payload).weights
    assert read_again.root(len(entries), {name: ids[entry] for name, entry in own.items()}) == tree.root


# ---------------------------------------------------------------- what is not signed, or by somebody else


@given(st.data())
def test_no_byte_of_a_statement_can_be_changed_under_its_signatures(data: st.DataObject) -> None:
    found = envelope(MADE)
    changed = bytearray(found.payload.data)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(VerificationError):
        read(replace(found, payload=replace(found.payload, data=bytes(changed))).encode())


def test_signatures_that_are_stripped_swapped_or_another_key_s_are_refused() -> None:
    found = envelope(MADE, TRAINER, CLIENT)
    (trainer, by_trainer), (client, by_client) = found.signatures
    for wrong, said in (
        (replace(found, signatures=((client, by_client),)), "a signature by its trainer"),
        (replace(found, signatures=()), "a signature by its trainer"),
        (envelope(MADE, CLIENT, STRANGER), "a signature by its trainer"),
        (found.signed(trainer, by_client), f"by {trainer}, got one by"),
        (found.signed(client, b"\0" * 65), f"by {client}, got none"),
        (found.signed("0x00", by_trainer), "got one by"),
        (replace(found, signatures=envelope(certificate(environment={})).signatures), "got one by"),
    ):
        with pytest.raises(SignatureError, match=said):
            read(wrong.encode())
    with_companion = found.signed("a key id of another tool", b"anything")
    assert MADE.signers(with_companion) == [TRAINER.address, CLIENT.address]


def test_job_and_head_must_be_signed_by_their_parties_for_this_board() -> None:
    job, agreed, head = MADE.job, MADE.agreement, MADE.head.head
    elsewhere = [replace(DOMAIN, chain_id=1), replace(DOMAIN, contract=STRANGER.address)]
    signatures = [job.sign(DOMAIN, STRANGER), job.sign(elsewhere[0], CLIENT), job.sign(elsewhere[0], TRAINER)]
    for other in (
        *(replace(MADE, agreement=replace(agreed, client_signature=signature)) for signature in signatures),
        *(replace(MADE, agreement=replace(agreed, trainer_signature=signature)) for signature in signatures),
        *(replace(MADE, agreement=replace(agreed, domain=domain)) for domain in elsewhere),
        *(replace(MADE, head=SignedHead.sign(head, domain, TRAINER)) for domain in elsewhere),
        replace(MADE, head=SignedHead.sign(head, DOMAIN, CLIENT)),
    ):
        with pytest.raises(SignatureError):
            read(envelope(other).encode())


def test_off_chain_certificate_cannot_claim_settlement_or_audits() -> None:
    bare: dict[str, Any] = {"domain": OFF_CHAIN, "audits": (), "settlement": None}
    read(envelope(certificate(**bare)).encode())
    for invented in ({"audits": MADE.audits}, {"settlement": MADE.settlement}):
        with pytest.raises(VerificationError, match="expected nothing that a chain has settled or paid"):
            read(envelope(certificate(**bare | invented)).encode())


def test_certificate_requires_the_final_head_and_its_record() -> None:
    head = MADE.head.head
    for wrong, said in (
        (replace(head, count=2), "one of all 3 checkpoints, got 2"),
        (replace(head, job_id=root("x")), "expected job"),
    ):
        with pytest.raises(VerificationError, match=said):
            read(envelope(replace(MADE, head=SignedHead.sign(wrong, DOMAIN, TRAINER))).encode())
    for other in (
        replace(MADE, record=replace(MADE.record, state_root=root("better weights"))),
        replace(MADE, record=StepRecord(step=10, state_root=MADE.record.state_root, loss_bits=0)),
        replace(MADE, path=MADE.path[:-1]),
        replace(MADE, path=(*MADE.path, root("more"))),
        replace(MADE, path=MADE.path[::-1]),
    ):
        with pytest.raises(ProofError):
            read(envelope(other).encode())


@pytest.mark.parametrize("bits", [0x7F800000, 0xFF800000, NAN_BITS])
def test_a_final_loss_that_the_job_forbids_is_no_certificate(bits: int) -> None:
    for tolerances in (None, 0, 20):
        read(envelope(certificate(tolerances=tolerances, loss_bits=bits)).encode())
    read(envelope(certificate(tolerances=FINITE_LOSSES)).encode())
    with pytest.raises(ForbiddenLoss, match=r"step 10: expected a finite loss, as the job demands, got"):
        read(envelope(certificate(tolerances=FINITE_LOSSES, loss_bits=bits)).encode())


# ---------------------------------------------------------------- what a trainer might sign that is not so


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))
    if not isinstance(value, dict | list):
        yield path


def altered(path: tuple[Any, ...]) -> bytes:
    document = json.loads(MADE.payload.data)
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    value = holder[path[-1]]
    holder[path[-1]] = value + 1 if isinstance(value, int) else ("f" if value[:1] != "f" else "e") + value[1:]
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


FREE = ("environment", "audits", "settlement", "weights", "attestation.type", "attestation.evidence")
"""What only its signer answers for, or what the tensors decide."""


def test_no_field_can_differ_from_the_signed_files(cases: Callable[[], None]) -> None:
    for path in leaves(json.loads(MADE.payload.data)):
        if path[0] != "subject" and not ".".join(map(str, path[1:])).startswith(FREE):
            with pytest.raises(VerificationError):
                read(signed_again(altered(path)))
            cases()


def test_statement_mismatch_error_names_the_field() -> None:
    with pytest.raises(EncodingError, match=r"predicate, job, steps '11' instead of '10'"):
        read(signed_again(altered(("predicate", "job", "steps"))))
    for more in ({"extra": 1}, {"predicate": {**MADE.document()["predicate"], "verdict": "right"}}):
        with pytest.raises(EncodingError, match="with other fields"):
            read(signed_again(json.dumps({**MADE.document(), **more}).encode()))
    with pytest.raises(EncodingError, match="another spelling"):
        read(signed_again(json.dumps(MADE.document(), indent=1).encode()))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"prefix":', b'"prefix":"","prefix":', "a name appears twice"),
        (b'"lossBits":1065353216', b'"lossBits":true', "expected an integer"),
        (b'"lossBits":1065353216', b'"lossBits":NaN', "expected finite numbers"),
        (b'"path":[', b'"path":[[],', "expected a field|expected 64 hex digits"),
        (b'"places":[[', b'"places":[[-1,', "pairs of integers"),
        (b'"subject":[{', b'"subject":[],"x":[{', "at least one file"),
        (b'"name":"model-', b'"name":"../model-', "the name of a file"),
        (b'"cpu":"a', b'"cpu":"\\u001b', "printable text"),
        (b'"type":"made', b'"type":"Made', "a type such as nvidia-gpu-eat"),
        (b'"evidence":"ZXZpZGVuY2U="', b'"evidence":""', "evidence of 1 to 7,168 bytes, got 0"),
        (b'"evidence":"ZXZpZGVuY2U="', b'"evidence":"' + b"AAAA" * 2400 + b'"', "of 1 to 7,168 bytes, got 7,200"),
        (b'"nonce":"', b'"nonce":"00', "attestation, nonce '00.*' instead of"),
        (b'"cpu":', b'"\\u001b":', "printable names"),
        (b'"places":', b'"suffixes":{},"places":', "with other fields|another spelling"),
        (b"Statement/v1", b"Statement/v2", "expected https"),
        (b"urn:tiebreak:certificate:1", b"urn:tiebreak:certificate:2", "expected urn"),
        (b'"signed":"', b'"signed":"!', "expected base64"),
        (b"{", b"{" * 60, "brackets"),
    ],
)  # fmt: skip
def test_hostile_statements_are_refused(old: bytes, new: bytes, said: str) -> None:
    statement = MADE.payload.data
    assert old in statement
    with pytest.raises(VerificationError, match=said):
        read(signed_again(statement.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"payloadType":', b'"payloadType": "x", "payloadType":', "a name appears twice"),
        (b'"signatures":', b'"more": 1, "signatures":', "no other fields"),
        (b"application/vnd.in-toto+json", b"application/json", "a payload of type"),
        (b'"sig": "', b'"sig": "\\n', "base64"),
        (b'"keyid": "0x', b'"keyid": "\\u0000x', "printable"),
        (b'"signatures": [', b'"signatures": [[], ', "expected an object"),
        (b'"signatures": [', b'"signatures": [' + b'{"keyid": "", "sig": ""}, ' * 64, "up to 64 signatures"),
        (b'"signatures": [', b'"signatures": [' + b'{"keyid": "", "sig": ""}, ' * 2, "one short signature"),
        (b'"signatures": [', b'"signatures": [' + b"[" * 9, "brackets"),
        (b"{", b" " * MAX_ENVELOPE_BYTES + b"{", "at most 131072 bytes"),
        (b"{", b"\xff{", "expected JSON"),
    ],
)
def test_hostile_envelopes_are_refused(old: bytes, new: bytes, said: str) -> None:
    data = envelope(MADE).encode()
    assert old in data
    with pytest.raises(EncodingError, match=said):
        read(data.replace(old, new, 1))


def test_base64_has_one_spelling() -> None:
    assert from_base64("x", base64(b"\xff\xfe")) == b"\xff\xfe"
    for other in ("//5=", "//4", "//4=\n", "__4=", "//4=="):
        with pytest.raises(EncodingError, match="x: expected"):
            from_base64("x", other)


def test_too_long_a_certificate_is_not_made() -> None:
    with pytest.raises(EncodingError, match="expected at most"):
        envelope(certificate(environment={str(n): "x" * 200 for n in range(600)})).encode()


# ---------------------------------------------------------------- the weights


def test_missing_added_renamed_retyped_or_changed_tensors_are_refused() -> None:
    right = tensors(5)
    first, second = list(right)[:2]
    for wrong, said in (
        ({name: right[name] for name in list(right)[1:]}, "expected 5 tensors of the state, got 4"),
        ({**right, "extra": root("extra")}, "expected 5 tensors of the state, got 6"),
        ({**right, first: root("changed, or of another type or shape")}, "another name, type, shape or value"),
        ({**right, first: right[second], second: right[first]}, "another name, type, shape or value"),
        ({("renamed" if name == first else name): digest for name, digest in right.items()}, "another name"),
    ):
        with pytest.raises(VerificationError, match=said):
            MADE.check_tensors(wrong)


def test_tied_weights_may_have_several_names_but_one_value() -> None:
    ids = {PREFIX + "a": root("a"), PREFIX + "b": root("b"), "step": root("step")}
    tree = state_tree(ids)
    weights = Weights.of(tree, sorted(ids), {"a": PREFIX + "a", "tied": PREFIX + "a"}, PREFIX)
    assert weights.names == {"tied": PREFIX + "a"}
    for held in ({"a"}, {"tied"}, {"a", "tied"}):
        assert weights.root(3, dict.fromkeys(held, root("a"))) == tree.root
    with pytest.raises(VerificationError, match=r"one tensor for model\.a, got two"):
        weights.root(3, {"a": root("a"), "tied": root("b")})


WORD = st.sampled_from("abcd")
PATH = st.lists(WORD, min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(PATH, PATH, min_size=1, max_size=12))
def test_any_tensor_name_resolves_to_its_state_entry(tensors: dict[str, str]) -> None:
    ids = {PREFIX + entry: root(entry) for entry in tensors.values()} | {"step": root("step")}
    entries = {name: PREFIX + entry for name, entry in tensors.items()}
    weights = Weights.of(state_tree(ids), sorted(ids), entries, PREFIX)
    assert {name: weights.entry(name) for name in entries} == entries
    weights.check(len(ids))
    assert weights.root(len(ids), {name: ids[entry] for name, entry in entries.items()}) == state_tree(ids).root


def adapted() -> Certificate:
    """A certificate for an adapter, over a state that holds its base too."""
    own = {f"{n}.lora.weight": f"{PREFIX}{n}.lora.default.weight" for n in range(3)}
    base = {f"{n}.weight": f"{PREFIX}{n}.base_layer.weight" for n in range(4)}
    ids = {entry: root(entry) for entry in (*own.values(), *base.values(), "step")}
    tree, entries = state_tree(ids), sorted(ids)
    base_weights = Weights.of(tree, entries, base, PREFIX, own.values())
    base_root = Adapter.root_of(map(root, base.values()))
    adapter = Adapter(configuration=root("configuration"), root=base_root, base=base_weights)
    return certificate(ids=ids, weights=Weights.of(tree, entries, own, PREFIX), adapter=adapter)


OWN = {f"{n}.lora.weight": root(f"{PREFIX}{n}.lora.default.weight") for n in range(3)}
BASE = {f"{n}.weight": root(f"{PREFIX}{n}.base_layer.weight") for n in range(4)}


def test_adapter_certificate_also_checks_the_base_weights() -> None:
    made = adapted()
    assert read(envelope(made).encode()) == made
    assert (made.weights.suffixes, made.weights.names) == ({".lora.weight": ".lora.default.weight"}, {})
    made.check_tensors(OWN)
    made.check_base(OWN, BASE)
    for wrong, said in (
        ({**BASE, "0.weight": root("another base")}, "base: expected tensors under state root"),
        (
            {**BASE, "0.weight": BASE["1.weight"], "1.weight": BASE["0.weight"]},
            "base: expected tensors under state root",
        ),
        ({**BASE, "more": root("more")}, "expected 7 tensors of the state, got 8"),
        ({name: BASE[name] for name in list(BASE)[1:]}, "expected 7 tensors of the state, got 6"),
    ):
        with pytest.raises(VerificationError, match=said):
            made.check_base(OWN, wrong)
    assert made.adapter is not None
    renamed = replace(made, adapter=replace(made.adapter, root=root("another base")))
    with pytest.raises(VerificationError, match="base: expected the root"):
        renamed.check_base(OWN, BASE)
    with pytest.raises(VerificationError, match="expected one for an adapter"):
        MADE.check_base(tensors(5), BASE)


FIRST = {PREFIX + name: root(f"first {name}") for name in tensors(5)} | {"step": root("zero")}
STARTED = certificate(first=FIRST)
START = {name: FIRST[PREFIX + name] for name in tensors(5)}


def test_certificate_shows_the_weights_that_its_run_started_from() -> None:
    assert read(envelope(STARTED).encode()) == STARTED
    assert STARTED.start is not None
    predicate = STARTED.document()["predicate"]
    assert predicate["start"]["root"] == Adapter.root_of(START.values()).hex()
    changed = [
        n for n, pair in enumerate(zip(STARTED.start.nodes, STARTED.weights.nodes, strict=True)) if len({*pair}) > 1
    ]
    assert 0 < len(predicate["start"]["nodes"]) == len(changed) < len(STARTED.weights.nodes)
    STARTED.check_tensors(tensors(5))
    STARTED.check_start(START)
    first, second, *_ = START
    for wrong, said in (
        (tensors(5), "start: expected tensors under state root .* than the run started from"),
        ({**START, first: START[second], second: START[first]}, "start: expected tensors under state root"),
        ({**START, first: root("first.layers.0.weight")}, "start: expected tensors under state root"),
        ({name: START[name] for name in list(START)[1:]}, "expected 5 tensors of the state, got 4"),
        ({**START, "more": root("more")}, "expected 5 tensors of the state, got 6"),
    ):
        with pytest.raises(VerificationError, match=said):
            STARTED.check_start(wrong)
    renamed = replace(STARTED, start=replace(STARTED.start, root=root("other weights")))
    with pytest.raises(VerificationError, match="start: expected the root"):
        renamed.check_start(START)
    assert "start" not in MADE.document()["predicate"], "those who signed before signed the same bytes"
    with pytest.raises(VerificationError, match="names what its run started from, got an older one"):
        MADE.check_start(START)


def test_starting_weights_have_one_spelling() -> None:
    """Nodes are those of the final state, but for those that are listed; each of these is one of them, and another."""
    assert STARTED.start is not None
    final, own = STARTED.weights.nodes, STARTED.start.nodes
    same = next(n for n, pair in enumerate(zip(own, final, strict=True)) if pair[0] == pair[1])
    for name, node in ((str(same), final[same]), (str(len(own)), root("x")), ("-1", root("x")), (" 1", root("x"))):
        document = STARTED.document()
        document["predicate"]["start"]["nodes"][name] = node.hex()
        with pytest.raises(EncodingError, match="with other fields"):
            Certificate.decode(replace(STARTED.payload, data=json.dumps(document, sort_keys=True).encode()))
    document = STARTED.document()
    document["predicate"]["start"]["nodes"].popitem()
    less = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(VerificationError, match="start: expected tensors under"):
        read(signed_again(less)).check_start(START)


@pytest.mark.parametrize(
    ("end", "entry"),
    [
        (".lora.weight", ".other.default.weight"), (".lora.weight", ".lora.weight"), (".lora.weight", ".lora.default"),
        (".lora.default.weight", ".lora.weight"), ("lora.weight", "lora.default.weight"), ("", ".x"), (".", ".x"),
        (".0.lora.weight", ".1.lora.default.weight"), (".x.lora.weight", ".x.lora.default.weight"),
        (".a.b", ".a.c.b.d"),
    ],
)  # fmt: skip
def test_adapter_suffix_rules_may_only_insert_words_into_names(end: str, entry: str) -> None:
    made = adapted()
    assert made.adapter is not None
    wrong = replace(made.weights, suffixes={end: entry})
    for other in (replace(made, weights=wrong), replace(made, adapter=replace(made.adapter, base=wrong))):
        with pytest.raises(VerificationError, match="with words inserted"):
            read(envelope(other).encode())


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))), st.data()
)
def test_any_subset_of_tensors_proves_the_state_root(case: tuple[int, set[int]], data: st.DataObject) -> None:
    count, chosen = case
    ids = {f"{PREFIX}{n:03d}": root(str(n)) for n in range(count)}
    shown = {f"{n:03d}": ids[f"{PREFIX}{n:03d}"] for n in chosen}
    tree = state_tree(ids)
    weights = Weights.of(tree, sorted(ids), {name: PREFIX + name for name in shown}, PREFIX)
    assert weights.count == len(chosen)
    assert weights.root(count, shown) == tree.root
    wrong = data.draw(st.sampled_from(sorted(shown)))
    assert weights.root(count, {**shown, wrong: root("wrong")}) != tree.root
    with pytest.raises(VerificationError, match="nodes"):
        replace(weights, nodes=(*weights.nodes, root("more"))).root(count, shown)
    if weights.nodes:
        with pytest.raises(VerificationError, match="expected a node"):
            replace(weights, nodes=weights.nodes[:-1]).root(count, shown)


@pytest.mark.parametrize("places", [((0, 2), (1, 3)), ((3, 5),), ((4, 1), (0, 4)), ((1 << 31, 5),), ((0, 5), (5, 0))])
def test_tensor_positions_must_ascend_within_the_state(places: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(VerificationError, match="ascending places below 6"):
        replace(MADE.weights, places=places).root(6, tensors(5))
    beyond = replace(MADE, weights=replace(MADE.weights, places=((0, 5), (1 << 31, 5))))
    with pytest.raises(VerificationError, match="ascending places below 16"):
        read(envelope(beyond).encode())
