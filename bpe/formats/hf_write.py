"""Write tokenizer.json and tokenizer_config.json, the files of Hugging Face's tokenizers.

They load in `tokenizers` 0.23 and `transformers` 5 with the same ids. Bytes are reproducible, and
each file is replaced atomically.

Special tokens are in `model.vocab` and in `added_tokens`, in the order of their ids, because
Hugging Face renumbers them if there are gaps. Additional keys (`unicode_version`, `pattern`,
`tie_break`, `ranked_by`) are in `model`, the only object in which unknown keys are accepted.
`eos_token`, `bos_token` and `pad_token` are in the second file, as in `transformers`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bpe.byte_level import all_to_byte_level, from_byte_level
from bpe.errors import VocabularyError, listed
from bpe.files.atomic_write import write_atomically
from bpe.files.locations import path_to_write
from bpe.formats.json_file import Lines, config_path, dumps, layout
from bpe.parallel import cached_property
from bpe.reference import TIE_BREAKS
from bpe.special import pad_token_of
from bpe.split.patterns import pattern_name, to_huggingface
from bpe.text.normalize import NORMAL_FORMS
from bpe.unicode_classes import UNICODE_VERSION
from bpe.vocabulary import AddedToken, Vocabulary


@dataclass(frozen=True)
class TokenizerParts:
    """Contents of a tokenizer file.

    Attributes:
        vocabulary: Tokens, merges and special tokens.
        pattern: Split pattern.
        tie_break: Ties in training, None if not known.
        eos_token: Special token that ends a document, None if not known.
        add_prefix_space: Whether a space is put in front of text that begins with none.
        outside: Added tokens that are not in `model.vocab`.
        settings: Other settings of a tokenizer.json that was read, as JSON; "" for the default.
        config: A tokenizer_config.json that was read, as JSON; "" for the default.
        bos_token: Special token that begins a document, None if not known.
        file_digest: SHA-256 of a tokenizer.json that was read, and whose tokens no other file
            changed, in hexadecimal; None if there is none.
    """

    vocabulary: Vocabulary
    pattern: str
    tie_break: str | None = None
    eos_token: str | None = None
    add_prefix_space: bool = False
    outside: frozenset[str] = frozenset()
    settings: str = ""
    config: str = ""
    bos_token: str | None = None
    file_digest: str | None = field(default=None, compare=False)

    @cached_property
    def text(self) -> str:
        """The text of tokenizer.json; raises as `tokenizer_json`. Kept for a second use."""
        return tokenizer_json(self)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `text`, in hexadecimal; raises as `tokenizer_json`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __getstate__(self) -> dict[str, object]:
        """Leave the text out of what is sent to other processes."""
        return {name: value for name, value in vars(self).items() if name != "text"}


def check_parts(parts: TokenizerParts) -> TokenizerParts:
    """Return parts with the name of their pattern, if tokens and settings are consistent.

    Raises:
        VocabularyError: A token with a role is not special, or `tie_break` is unknown.
        PatternError: The pattern is unknown.
    """
    special, tie_break = parts.vocabulary.special_tokens, parts.tie_break
    for name, token in (("eos_token", parts.eos_token), ("bos_token", parts.bos_token)):
        if token is not None and token not in special:
            raise VocabularyError(
                f"{name} {token!r} is not a special token of this tokenizer: expected one of"
                f" {listed(special)}"
            )
    if tie_break is not None and tie_break not in TIE_BREAKS:
        raise VocabularyError(
            f"unknown tie_break {tie_break!r}: expected None or one of {listed(TIE_BREAKS)}"
        )
    return replace(parts, pattern=pattern_name(parts.pattern))


def tokenizer_json(parts: TokenizerParts) -> str:
    """Return the text of tokenizer.json, one line per token and merge.

    Raises:
        VocabularyError: No list of merges is equivalent to tiktoken's ranks.
    """
    vocabulary = parts.vocabulary
    vocabulary.check_expressible_as_merges()
    added = vocabulary.added_tokens
    flat = vocabulary.flat
    # JSON of all at once; there is no space in the byte-level alphabet.
    listed_texts = dumps(all_to_byte_level(flat.offsets, flat.data))[2:-2].split('", "')
    spelled = dict(zip(flat.ids.tolist(), listed_texts, strict=True))
    inside = {x.id: dumps(x.text)[1:-1] for x in added if x.text not in parts.outside}
    texts = spelled | inside
    if len({*texts.values()}) < len(texts):
        others = {spelled[number] for number in spelled.keys() - inside.keys()}
        text = next(x.text for x in added if inside.get(x.id) in others)
        raise VocabularyError(
            f"the special token {text!r} and the ordinary token {from_byte_level(text)!r} have the"
            " same text in tokenizer.json and would be one; rename the special token, such as"
            " '<|name|>', or save ranks (.tiktoken)"
        )
    # Added tokens that are ordinary tokens, too, without a merge; see `hf_read`.
    both = False
    pairs: Iterable[tuple[int, int]]
    if vocabulary.has_tiktoken_ranks:
        id_of = {token: number for number, token in vocabulary.tokens.items()}
        pairs = ((id_of[left], id_of[right]) for left, right in vocabulary.merges)
    else:
        table = vocabulary.pair_table()
        ids = inside.keys() & spelled.keys()
        ordinary = [x.id for x in added if x.id in ids and len(x.text) > 1]
        in_merges = np.concatenate([table.left_ids, table.right_ids, table.merged_ids])
        both = not np.isin(np.array(ordinary, np.int32), in_merges).all()
        pairs = zip(table.left_ids.tolist(), table.right_ids.tolist(), strict=True)
    merges = [f'["{spelled[left]}", "{spelled[right]}"]' for left, right in pairs]
    vocab = [f'"{texts[number]}": {number}' for number in sorted(texts)]
    settings = json.loads(parts.settings) if parts.settings else default_settings(parts)
    top: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": Lines.of(list(map(added_token_json, added))),
        **{name: settings[name] for name in STEPS},
        "model": {
            "type": "BPE",
            **settings["model"],
            "ignore_merges": vocabulary.ignore_merges,
            "unicode_version": UNICODE_VERSION,
            "pattern": parts.pattern,
            "tie_break": parts.tie_break,
            "ranked_by": None if both else "bytes" if vocabulary.has_tiktoken_ranks else "merges",
            "vocab": Lines("{}", vocab),
            "merges": Lines("[]", merges),
        },
    }
    return layout(top) + "\n"


# Section -> key of the steps of a sequence, implemented kinds. A post_processor has no effect, as
# special tokens around a text are not added and offsets are not used.
STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "normalizer": ("normalizers", NORMAL_FORMS),
    "pre_tokenizer": ("pretokenizers", ("Split", "Digits", "ByteLevel")),
    "post_processor": (
        "processors", ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing")
    ),
    "decoder": ("decoders", ("ByteLevel",)),
}

# Settings of `model` that are written back -> their defaults.
KEPT_OF_MODEL = {
    "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
    "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
}  # fmt: skip

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def added_token_json(token: AddedToken) -> dict[str, object]:
    """Return the entry of an added token in tokenizer.json."""
    flags = {name: getattr(token, name) for name in FLAGS}
    return {"id": token.id, "content": token.text, **flags}


def default_settings(parts: TokenizerParts) -> dict[str, Any]:
    """Return default settings; raise PatternError if Hugging Face has no equivalent steps."""
    steps = to_huggingface(parts.pattern)
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": parts.add_prefix_space, "trim_offsets": False,
        "use_regex": steps is None,
    }
    forms = [{"type": form} for form in parts.vocabulary.normal_forms]
    return {
        "normalizer": _sequence("normalizer", forms),
        "pre_tokenizer": _sequence("pre_tokenizer", [*(steps or ()), byte_level]),
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": False, "use_regex": True},
        "model": KEPT_OF_MODEL,
    }


def _sequence(section: str, steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the steps as one object of tokenizer.json: alone or in a Sequence; None: no step."""
    if len(steps) > 1:
        return {"type": "Sequence", STEPS[section][0]: steps}
    return steps[0] if steps else None


def default_config(parts: TokenizerParts) -> dict[str, object]:
    """Return the default tokenizer_config.json."""
    special, eos_token = parts.vocabulary.special_tokens, parts.eos_token
    # Without a token to pad with, the Trainer of transformers makes no batches.
    others = {"bos_token": parts.bos_token, "pad_token": pad_token_of(special) or eos_token}
    named = {"eos_token": eos_token} | {name: x for name, x in others.items() if x is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "extra_special_tokens": [x for x in special if x not in named.values()],
        "add_prefix_space": parts.add_prefix_space,
        "clean_up_tokenization_spaces": False,
    }


def config_json(parts: TokenizerParts) -> str:
    """Return the text of tokenizer_config.json."""
    config = json.loads(parts.config) if parts.config else default_config(parts)
    return layout(config) + "\n"


def write_tokenizer(path: str | os.PathLike[str], text: str, config: str) -> None:
    """Write tokenizer.json and, in its directory, its configuration; each atomically."""
    path = path_to_write(path)
    # The tokenizer last: a process that waits for it finds its configuration.
    write_atomically(config_path(path), config.encode())
    write_atomically(path, text.encode())
