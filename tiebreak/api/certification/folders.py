"""Finds what in a model's folder could make a loader use other weights or run code. Imports no torch.

A folder is a stranger's: nothing in it is followed or run, and no more of it is read than these bounds allow. Loaders
are those of transformers, PEFT, sentence-transformers and diffusers, also with `trust_remote_code`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import file_digest
from pathlib import Path
from typing import Final

from tiebreak.engine import system
from tiebreak.engine.data.disk import Folder
from tiebreak.engine.data.elements import Element
from tiebreak.protocol.commitments.certificate import MAX_OTHERS, OTHER
from tiebreak.protocol.errors import ConfigurationError, EncodingError, VerificationError
from tiebreak.protocol.strict_json import MAX_NESTING, is_deeper
from tiebreak.protocol.tags import Digest

WEIGHTS: Final = "model.safetensors"
"""The name in the layout of `save_pretrained`."""
INDEX: Final = "model.safetensors.index.json"
ADAPTER: Final = "adapter_config.json"
"""The file that makes transformers load another model, which it names, and the adapter in its folder."""
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
"""The name of the tensors in the folder of an adapter, as PEFT's `save_pretrained` writes it."""
EVALUATION, SCORES = "evaluation.json", "scores.safetensors"
"""The files of an evaluation: its description, and its scores, which no loader takes for weights."""
CONFIGURED: Final = {ADAPTER: ADAPTER_WEIGHTS, EVALUATION: SCORES}
"""Files that say what the tensors of others in their folder are."""
SLSA, MODEL_SIGNATURE, RECEIPT = "tiebreak.slsa.json", "tiebreak.model.sig", "tiebreak.receipt.json"
IN_TOTO, CYCLONEDX, SPDX = "tiebreak.intoto.json", "tiebreak.cdx.json", "tiebreak.spdx.json"
DOSSIER: Final = "tiebreak.dossier.html"
FORMATS: Final = {SLSA, MODEL_SIGNATURE, RECEIPT, IN_TOTO, CYCLONEDX, SPDX, DOSSIER}
"""Files made from a certificate (`provenance`), which therefore cannot be among its files."""
GIT: Final = (".git", ".gitattributes", ".github", ".gitignore")
"""Names at the top of a folder that `model_signing` passes over."""
TRAINING_ARGUMENTS: Final = "training_args.bin"
"""The file in which a `Trainer` leaves its arguments when it saves weights; `from_pretrained` never opens it."""
HARMLESS: Final = {"", ".json", ".txt", ".md", ".jinja", ".model", ".sig"}
"""Suffixes of files without weights and code: configuration, tokenizers, certificates and what people read."""
PROSE: Final = {"", ".md", ".sig"}
"""Endings of files that no loader opens."""
PIPELINES: Final = {ADAPTER, "modules.json", "model_index.json"}
"""Files by which PEFT, sentence-transformers and diffusers load other folders, and classes by their dotted names."""
TABLES: Final = {INDEX, "tokenizer.json", "vocab.json", "added_tokens.json"}
"""JSON files whose keys are tokens or tensors, and no loader's settings."""
MISLEADING: Final = {
    "auto_map", "compression_config", "custom_pipelines", "kernel_config", "megatron_config", "quantization_config",
    "transformers_weights", "trust_remote_code", "use_kernels", "use_pretrained_backbone",
}  # fmt: skip
"""Fields that make a loader run code, read other files, or change weights when it has read them."""
FLOATS: Final = {Element.F32, Element.BF16, Element.F16}
NARROW: Final = {"bfloat16": {Element.BF16}, "float16": {Element.F16}}
WIDE: Final = {"float32", "float64", "auto", "None"}
"""Types into which a loader rounds no float of the files; those in `NARROW` keep their own alone."""
QUANTIZED: Final = re.compile(
    r"\.weight\.(?:(?:nested_)?absmax|(?:nested_)?quant_map|quant_state\.bitsandbytes__(?:nf4|fp4))$"
)
"""The tensors that bitsandbytes saves beside the codes of a 4-bit weight."""
_EMBEDDED: Final = re.compile(r"(?:^|\.)(?:embed_(?:tokens|in|positions)|w[tp]e|\w+_embeddings)$")
"""Matrices that are no layer's, and so never quantized."""
_HEAD: Final = re.compile(
    r"(?:^|\.)(?:lm_head|embed_out|proj_out|output_\w+|(?:predictions|lm_head)\.decoder)\.weight$"
)
_MODELS_WITH_HEAD: Final = re.compile(r"LMHead|For(?:CausalLM|MaskedLM|ConditionalGeneration)")
SHOWN: Final = 20
MAX_ENTRIES: Final = 10_000
MAX_DEPTH: Final = 8
MAX_COVERED: Final = 2 * MAX_OTHERS
MAX_OTHER_BYTES: Final = 1 << 28
MAX_JSON_BYTES: Final = 1 << 24
MAX_JSON_FILES: Final = 1000
MORE: Final = "more than is read here"


def listed(names: Sequence[str]) -> str:
    """Names joined for a message: the first `SHOWN`, and the number of the rest."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(map(ascii, names[:SHOWN]))}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files of weights. others: the other files in their folder, by their paths in it."""

    files: dict[str, Digest]
    """The SHA-256 of each, by name."""
    tensors: dict[str, Digest]
    """The ids of all tensors, as a state tree has them, by the names in the files."""
    elements: frozenset[Element] = frozenset()
    """The types of the elements in the files, but for codes and scales of 4-bit weights."""
    matrices: frozenset[str] = frozenset()
    """The names of the tensors with several dims that are no such codes."""
    others: tuple[str, ...] = ()
    configuration: Digest | None = None
    """The SHA-256 of an adapter's configuration, or of what an evaluation scored; None for a model's weights."""
    same: frozenset[str] = frozenset()
    """The others that are as they were signed for."""
    different: frozenset[str] = frozenset()
    """The signed files that have other bytes, or are missing."""

    def compared(self, folder: Path, signed: Mapping[str, Digest]) -> "Found":
        """Compares the other files with the signed ones, and reads only these."""
        same = set[str]()
        for name in signed.keys() & {*self.others}:
            with suppress(VerificationError):  # a link, a pipe, or too large
                same |= {name} if _digest(folder, name) == signed[name] else set()
        return replace(self, same=frozenset(same), different=frozenset(signed) - same)

    @property
    def is_evaluation(self) -> bool:
        """Whether the tensors are scores, and no weights."""
        return [*self.files] == [SCORES]

    @property
    def unsigned(self) -> tuple[str, ...]:
        """The others that were not signed for, a folder without any that was by its own name."""
        known = self.same | self.different
        kept = {name.split("/")[0] for name in known}
        return tuple(dict.fromkeys(
            name if (top := name.split("/")[0]) in kept else top
            for name in self.others if name not in known | FORMATS
        ))  # fmt: skip

    def leaves_open(self) -> list[str]:
        """Sentences on what a certificate does not say of the other files."""
        kinds = {
            "What the other files that were signed for make of the weights, as the signers chose": sorted(self.same),
            "Anything about files that are not as they were signed for, or missing": sorted(self.different),
            "Anything about other files, which decide how weights are used": self.unsigned,
        }
        return [f"{words}: {listed(names)}." for words, names in kinds.items() if names]


def others_in(folder: Path) -> tuple[str, ...]:
    """All that is in a folder and its folders, sorted, by paths; the path of one that is empty or too deep ends in `/`.

    Raises `EncodingError` for a folder of more than `MAX_ENTRIES`.
    """
    found, left, seen = list[str](), [""], 0
    while left:
        place, before = left.pop(), seen
        try:
            with os.scandir(folder / place) as entries:
                for seen, entry in enumerate(entries, before + 1):
                    if seen > MAX_ENTRIES:
                        raise EncodingError(f"{folder}: expected at most {MAX_ENTRIES:,} files and folders, got more")
                    name = place + entry.name
                    is_inner = system.is_folder(entry)
                    (left if is_inner and name.count("/") < MAX_DEPTH else found).append(name + "/" * is_inner)
        except OSError as error:
            raise EncodingError(f"{folder / place}: cannot be read: {error}") from error
        if place and seen == before:
            found.append(place)
    return tuple(sorted(found))


def digests(folder: Path, names: Iterator[str]) -> dict[str, Digest]:
    """The SHA-256 of files of a folder, for a certificate. Raises `ConfigurationError` if it cannot hold them."""
    listed = sorted(names)
    wrong = [name for name in listed if not re.fullmatch(OTHER, name)]
    if len(listed) > MAX_OTHERS or wrong:
        got = f"{len(listed)}{f', with {wrong[0]!r}' if wrong else ''}"
        raise ConfigurationError(
            f"{folder}: expected at most {MAX_OTHERS} files beside the weights, with paths of printable ASCII, got "
            f"{got}; certify a folder that has the model and nothing else"
        )
    return {name: _digest(folder, name) for name in listed}


def other_digests(folder: Path, besides: Set[str]) -> dict[str, Digest]:
    """The SHA-256 of all files of a folder, at any depth. besides: names at its top that are passed over.

    Raises `EncodingError` for links, pipes, large files, and more or deeper ones than are read.
    """
    names = [name for name in others_in(folder) if name.split("/")[0] not in besides]
    files = [name for name in names if not name.endswith("/") or name.count("/") > MAX_DEPTH]
    wrong = [name for name in files if not re.fullmatch(OTHER, name)]
    if wrong or len(files) > MAX_COVERED:
        raise EncodingError(
            f"{folder}: expected at most {MAX_COVERED} files beside the weights, with paths of printable ASCII, "
            f"at most {MAX_DEPTH} folders deep, got {wrong[0] if wrong else len(files)!r}"
        )
    return {name: _digest(folder, name) for name in files}


def _digest(folder: Path, name: str) -> Digest:
    *inside, last = name.split("/")
    with Folder(folder, *inside) as opened:
        opened.size(last, MAX_OTHER_BYTES)
        with opened.reading(last) as (file, _):
            return Digest(file_digest(file, "sha256").digest())


def doubtful(folder: Path, found: Found, *, is_listed: bool) -> list[str]:
    """Names what makes a loader take other weights than those of `found` from a folder, or run code.

    is_listed: whether other files were signed for; then also those that a loader may open and that were not, or are
    others now.
    """
    if found.is_evaluation:
        return []
    weights = WEIGHTS if found.configuration is None else ADAPTER_WEIGHTS
    # It takes `WEIGHTS` where there is one, else what the index names, else files of other formats.
    indexed = INDEX in found.others and weights == WEIGHTS and WEIGHTS not in found.files
    named = {name for name in found.files if name != weights and not indexed}
    changed = {f"{name}, not as it was signed for" for name in found.different if Path(name).suffix not in PROSE}
    settings = [ADAPTER] if found.configuration is not None else []
    for name in found.others:
        place, _, last = name.rpartition("/")
        suffix = Path(last).suffix
        misleads = last in PIPELINES or (last.endswith(".index.json") and name != INDEX)
        if place and name not in found.same:
            named.add(name.split("/")[0])
        elif misleads or (suffix not in HARMLESS and name not in {TRAINING_ARGUMENTS} | FORMATS):
            named.add(name)
        elif is_listed and name not in found.same | found.different | FORMATS and suffix not in PROSE:
            changed.add(f"{name}, which nobody signed for")
        if (not place or name in found.same) and suffix == ".json" and last not in TABLES:
            settings.append(name)
    if len(settings) > MAX_JSON_FILES:
        named |= set(settings[MAX_JSON_FILES:])
    for name in settings[:MAX_JSON_FILES]:
        named |= {f"{name} with {field}" for field in _misleading(folder, name, found)}
    return sorted(named | changed)


def _misleading(folder: Path, name: str, found: Found) -> Set[str]:
    """The fields of a JSON document, at any depth, by which a loader is misled."""
    *inside, last = name.split("/")
    try:
        with Folder(folder, *inside) as opened:
            data = opened.read(last, MAX_JSON_BYTES)
        if is_deeper(data, MAX_NESTING):
            return {MORE}
        left = [json.loads(data)]
        fields = set[str]()
        while left:
            one = left.pop()
            if isinstance(one, dict):
                fields |= {field for field, value in one.items() if _misleads(field, value, one, found)}
            left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    except EncodingError:
        return {MORE}
    except ValueError:  # then a loader does not read it either
        return set()
    return {field[:80] for field in fields}


def _misleads(field: str, value: object, beside: Mapping[str, object], found: Found) -> bool:
    if "_implementation" in field:  # of attention or experts: `org/kernel` is code from a hub
        return "/" in json.dumps(value)
    if field == "tie_word_embeddings":  # a head that is not the tensor in the files: the embedding, or drawn at random
        heads = {name for name in found.tensors if _HEAD.search(name)}
        embedded = {digest for name, digest in found.tensors.items() if name not in heads}
        drawn = not heads and _MODELS_WITH_HEAD.search(json.dumps(beside.get("architectures"))) is not None
        return any(found.tensors[name] not in embedded for name in heads) if value else drawn
    if field in ("dtype", "torch_dtype"):
        kinds = [str(kind).removeprefix("torch.") for kind in (value.values() if isinstance(value, dict) else [value])]
        return any(kind not in WIDE and found.elements & (FLOATS - NARROW.get(kind, set())) for kind in kinds)
    if field == "quantization_config" and isinstance(value, dict):
        return not _keeps_codes(value, found)
    return field in MISLEADING and value is not None and value is not False


def _keeps_codes(settings: Mapping[str, object], found: Found) -> bool:
    """Whether transformers takes 4-bit weights as their codes say, and makes no others of the plain matrices."""
    skipped = settings.get("llm_int8_skip_modules")
    named = ["lm_head"] if skipped is None else skipped if isinstance(skipped, list) else []
    layers = {name for name in (n.removesuffix(".weight") for n in found.matrices) if not _EMBEDDED.search(name)}
    kept = all(any(f".{name}".endswith(f".{one}") for one in named) for name in {*layers, "lm_head"})
    is_4bit = (settings.get("quant_method"), settings.get("load_in_4bit")) == ("bitsandbytes", True)
    return is_4bit and not settings.get("load_in_8bit") and kept and any(map(QUANTIZED.search, found.tensors))
