"""Records with any contents, drawn by the kinds of their fields."""

from typing import Any

from hypothesis import strategies as st

from tiebreak.protocol.commitments.job import Head
from tiebreak.protocol.game.moves import MOVES, AnyMove, Prove
from tiebreak.protocol.packing import Data, FieldType, ListOf, OneOf, Raw, Record, Uint
from tiebreak.protocol.parties.posts import FileName
from tiebreak.protocol.parties.transactions import AnyProof, Signed


def of_kind(kind: FieldType) -> st.SearchStrategy[Any]:  # one case a kind
    """What a field of this kind may hold; bytes and lists that may be long are mostly short."""
    match kind:
        case Uint():
            return st.integers(kind.low, (1 << kind.bits) - 1 if kind.high is None else kind.high)
        case Raw():
            return st.binary(min_size=kind.length, max_size=kind.length)
        case Data():
            return st.binary(max_size=min(kind.limit, 97))
        case ListOf():
            return st.lists(of_kind(kind.item), max_size=min(kind.limit, 4)).map(tuple)
        case OneOf():
            return st.one_of(*[st.none()] * kind.optional, *map(any_record, kind.types))
        case FileName():
            return st.sampled_from([b"program.tbp", b"a/b", b"heads/0"])
        case Signed():
            return st.builds(kind.type, head=any_record(Head), signature=st.binary(min_size=65, max_size=65))
        case AnyProof():
            return any_record(Prove)
        case AnyMove():
            return st.one_of(*map(any_record, MOVES.values()))
    raise NotImplementedError(kind)


def any_record(record: type[Record]) -> st.SearchStrategy[Any]:
    return st.builds(record, **{name: of_kind(kind) for name, kind in record.kinds().items()})
