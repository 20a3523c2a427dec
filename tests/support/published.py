"""Tokenizers with the structure of published ones, and small vocabularies that are trained here."""

from __future__ import annotations

import functools
import json
from typing import Any

import trained

from bpe import Tokenizer
from bpe.pretokenize.patterns import PATTERNS
from bpe.vocabulary import Vocabulary

BASE = json.loads(
    Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges("huggingface")))
    .to_huggingface()
    .to_str()
)
for _key in ("unicode_version", "pattern", "tie_break", "ranked_by"):
    BASE["model"].pop(_key, None)
SIZE, MERGES = BASE["model"]["vocab"], BASE["model"]["merges"]
N = len(SIZE)


def file(added: list[dict[str, Any]] | None = None, **changes: Any) -> str:
    """Return a tokenizer.json: a trained one without our own keys, and some changes."""
    model = BASE["model"] | changes.pop("model", {})
    return json.dumps({**BASE, "model": model, "added_tokens": added or [], **changes})


def token(text: str, number: int, **flags: bool) -> dict[str, Any]:
    """Return an entry of `added_tokens`, special without other settings by default."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": text, **plain, "special": True, **flags}


def split(regex: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    """Return a pre-tokenizer that splits by a regex."""
    pattern = {"Regex": regex}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    """Return a pre-tokenizer of several."""
    return {"type": "Sequence", "pretokenizers": list(steps)}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WHOLE = BYTES | {"use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|begin|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [N], "tokens": ["<|begin|>"]}},
}  # fmt: skip
# Without the 13 bytes that UTF-8 never has, whose characters stand for themselves.
_OUTSIDE = [*map(chr, (0xC0, 0xC1, *range(0xF5, 0x100)))]
NO_13 = {text: i for i, text in enumerate(text for text in SIZE if text not in _OUTSIDE)}
RUNS_OF_SPACES = [
    token(" " * n, N + 26 - n, special=False, normalized=True) for n in range(24, 1, -1)
]
SUPERWORDS = [
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]{2,}[\r\n/]*| +(?!\S)", r"(?=(\d{3})+(?!\d))",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{L}&&[^\p{Han}]]+|\p{Han}+",
]  # fmt: skip

# Byte-level: our own engine runs them.
NATIVE = {
    "gpt2": file([token("<|endoftext|>", N)], pre_tokenizer=WHOLE, decoder=WHOLE),
    "gpt-neox": file(
        [token("<|endoftext|>", len(NO_13)), token("<|padding|>", len(NO_13) + 1)]
        + [each | {"id": len(NO_13) + 2 + i} for i, each in enumerate(RUNS_OF_SPACES)],
        model={"vocab": NO_13},
        normalizer={"type": "NFC"},
        pre_tokenizer=WHOLE,
        post_processor=WHOLE | {"add_prefix_space": True, "trim_offsets": False},
        decoder=WHOLE,
    ),
    "dolma2": file(
        [token("<|endoftext|>", N), token("<|extra_id_0|>", N + 1, special=False)],
        pre_tokenizer=sequence(split(PATTERNS["llama3"], "Removed", True), BYTES),
    ),
    "llama3": file(
        [token("<|begin|>", N), token("<|end|>", N + 1), token("<|eot|>", N + 2)],
        pre_tokenizer=sequence(split(PATTERNS["llama3"]), BYTES),
        post_processor={"type": "Sequence", "processors": [WHOLE, TEMPLATE]},
        model={"ignore_merges": True},
    ),
    "qwen2": file(
        [token("<|im_start|>", N), token("<tool>", N + 1, special=False)],
        normalizer={"type": "NFC"},
        pre_tokenizer=sequence(split(PATTERNS["qwen2"]), BYTES),
    ),
    "phi4": file(
        [token("<|im_start|>", N, rstrip=True, lstrip=True), token("<|sep|>", N + 1, rstrip=True)],
        pre_tokenizer=sequence(split(PATTERNS["llama3"], "Removed", True), BYTES),
    ),
    "whisper": file(
        [token("", N), token("<|endoftext|>", N + 1), token("<|0.00|>", N + 2, special=False)],
        model={"vocab": SIZE | {"": N, "<|endoftext|>": N + 1}},
        pre_tokenizer=WHOLE,
    ),
    "starcoder": file([token("<|endoftext|>", N)], pre_tokenizer=sequence(DIGITS, WHOLE)),
    "bloom": file(
        [token("<unk>", N), token("</s>", N + 1)],
        pre_tokenizer=sequence(split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), BYTES),
    ),
    "roberta": file(
        [token("<s>", N, normalized=True), token("<mask>", N + 1, lstrip=True)],
        pre_tokenizer=WHOLE | {"add_prefix_space": True},
        post_processor={
            "type": "RobertaProcessing",
            "sep": ["<s>", N],
            "cls": ["<s>", N],
            "trim_offsets": True,
            "add_prefix_space": True,
        },
        model={"unk_token": "<s>", "continuing_subword_prefix": "", "end_of_word_suffix": ""},
    ),
    "deepseek": file(
        [token("<｜end▁of▁sentence｜>", N), token("<｜User｜>", N + 1, special=False)],
        pre_tokenizer=sequence(
            split(r"\p{N}{1,3}"),
            split("[一-龥\u3040-ゟ゠-ヿ]+"),
            split(
                r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            BYTES,
        ),
    ),
    "gpt-4o": file(
        [token("<|endoftext|>", N), token("<|endofprompt|>", N + 1)],
        pre_tokenizer=sequence(split(PATTERNS["o200k"], "Removed", True), BYTES),
    ),
    "superbpe": file(pre_tokenizer=sequence(*map(split, SUPERWORDS), BYTES)),
    # One peculiarity each.
    "unsplit": file(pre_tokenizer=BYTES),
    "gaps": file(
        [token("<|low|>", 300), token("<|high|>", 2000)],
        model={
            "vocab": {key: number + (number >= 300) for key, number in SIZE.items()}
            | {"<|low|>": 300, "<|high|>": 2000, "unreached": 3000}
        },
    ),
    "merges as text": file(model={"merges": [" ".join(pair) for pair in MERGES]}),
    "double merges": file(model={"merges": MERGES[:60] + MERGES}),
    "empty token, whole pre-tokens": file(
        model={"vocab": {"": N, **SIZE}, "ignore_merges": True, "byte_fallback": True}
    ),
    "covering pattern": file(
        pre_tokenizer=sequence(split(r"\p{L}+|\s+|[^\p{L}\s]?[^\s\p{L}]", "Removed", True), BYTES)
    ),
    "other spellings": file(
        [token("\u212aelvin", N, normalized=True), token("ﬁ", N + 1, normalized=True)],
        normalizer={"type": "NFKC"},
    ),
    "no version, no type": file(version="1.0").replace('"version": "1.0", ', "").replace(
        '"type": "BPE", ', ""
    ),
}  # fmt: skip

_NO_Z = {text: number for text, number in SIZE.items() if "Z" not in text}
_BYTES_MISSING = {"vocab": _NO_Z, "merges": [pair for pair in MERGES if "Z" not in "".join(pair)]}
# Hugging Face's library runs them -> what the reason says.
PECULIAR = {
    "a byte is missing": (file(model=_BYTES_MISSING), "the first is b'Z'"),
    "a byte is unknown": (
        file(
            [token("<unk>", N)],
            model=_BYTES_MISSING
            | {"vocab": _NO_Z | {"<unk>": N}, "unk_token": "<unk>", "fuse_unk": True},
        ),
        "the first is b'Z'",
    ),
    "two tokens of one id": (file(model={"vocab": SIZE | {"xyz": 300}}), "'xyz' has the id 300"),
    "a merge with nothing": (
        file(model={"vocab": SIZE | {"": N}, "merges": [*MERGES, ["a", ""]]}),
        "model.merges[600] is",
    ),
    "an added token twice": (file([token("<a>", N), token("<a>", N, special=False)]), "appears tw"),
    "other ids": (file([token("<a>", N + 7), token("<b>", N + 3)]), f"has the id {N + 7}: exp"),
    "another id inside": (file([token("<a>", 5)]), "has the id 5: expected"),
    "text is dropped": (
        file(pre_tokenizer=sequence(split(r"\p{L}+|\s+", "Removed", True), BYTES)),
        "behavior Removed can drop text",
    ),
    "matches are dropped": (
        file(pre_tokenizer=sequence(split(r"\s|\S", "Removed"), BYTES)),
        "behavior Removed can drop text",
    ),
    "end of word": (file(model={"end_of_word_suffix": "</w>"}), "model.end_of_word_suffix is"),
    "not byte-level": (file(model={"vocab": SIZE | {"a b": N}}), "'a b' is not spelled in GPT-2's"),
    "lower case": (
        file([token("ABC", N, normalized=True)], normalizer={"type": "Lowercase"}),
        'normalizer is "Lowercase"',
    ),
    "truncated and padded": (
        file(
            truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst"}
            | {"stride": 0},
            padding={"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
            | {"pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        ),
        "the setting truncation is",
    ),
    "falcon": (
        file(
            [token("<|endoftext|>", N)],
            pre_tokenizer=sequence(
                {"type": "Punctuation", "behavior": "Contiguous"},
                WHOLE,
                {"type": "Digits", "individual_digits": False},
                split("[0-9][0-9][0-9]"),
            ),
        ),
        "pre_tokenizer.pretokenizers[0] is",
    ),
}  # fmt: skip


def train(model: Any, trainer: Any, **parts: Any) -> dict[str, Any]:
    """Train a tokenizer of Hugging Face; return its tokenizer.json."""
    from tokenizers import Tokenizer as Theirs

    made = Theirs(model)
    for name, part in parts.items():
        setattr(made, name, part)
    made.train_from_iterator(trained.documents(), trainer)
    top: dict[str, Any] = json.loads(made.to_str())
    return top


@functools.cache
def of_other_models() -> dict[str, str]:
    """Return tokenizers of SentencePiece's and BERT's kinds, by name."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    llama = train(
        models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
        trainers.BpeTrainer(
            vocab_size=700, special_tokens=special + byte_tokens, show_progress=False
        ),
        normalizer=normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        ),
        decoder=decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
             decoders.Strip(" ", 1, 0)]
        ),
    )  # fmt: skip
    added = llama["added_tokens"]
    turns = [token(text, 700 + i, rstrip=True) for i, text in enumerate(["<|user|>", "<|end|>"])]
    words = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    bert = train(
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer(
            vocab_size=600, special_tokens=["[UNK]", "[CLS]"], show_progress=False
        ),
        normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )
    untyped = {**llama, "model": {k: x for k, x in llama["model"].items() if k != "type"}}
    kinds = {
        "llama2": llama | {"added_tokens": added[:3]},
        "llama2, byte tokens are special": llama,
        "llama2, byte tokens are added": llama
        | {"added_tokens": [*added[:3], *(each | {"special": False} for each in added[3:])]},
        "llama2, without model.type": untyped,
        "mistral": llama
        | {"added_tokens": added[:3], "normalizer": None}
        | {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁"}
           | {"prepend_scheme": "first", "split": False}},
        "phi3": llama | {"added_tokens": [*added[:3], *turns]},
        "gemma": llama
        | {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}
        | {"pre_tokenizer": words | {"invert": False}},
        "bert": bert,
    }  # fmt: skip
    return {name: json.dumps(top) for name, top in kinds.items()}
