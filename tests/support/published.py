"""Tokenizers with the structure of published ones, and small vocabularies that are trained here."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import trained

from bpe import load_tokenizer
from bpe.formats.hf_write import TokenizerParts, tokenizer_json
from bpe.split.patterns import PATTERNS
from bpe.text.spans import spans_of
from bpe.text_tokenizer import AnyTokenizer
from bpe.vocabulary import Vocabulary

BASE = json.loads(
    tokenizer_json(TokenizerParts(Vocabulary.from_merges(trained.merges("huggingface")), "gpt2"))
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
    "a large id": (
        file(model={"vocab": SIZE | {[*SIZE][-1]: 2**21 - 1}}),
        "an id, or the number of a merge, is 2,097,151: expected at most 2,097,150",
    ),
    "a large id of an added token": (
        file([token("<a>", 2**31 - 2)], model={"vocab": SIZE | {"<a>": 2**31 - 2}}),
        "an id, or the number of a merge, is 2,147,483,646: expected at most 2,097,150",
    ),
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
        "pre_tokenizer is \"Punctuation\": only Split, Digits, ByteLevel are implemented",
    ),
}  # fmt: skip


END = "</s>"


def made(kind: str) -> Any:
    """Train a small tokenizer of a kind, with special tokens first, as its owners have them."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    special = ["<unk>", "<s>", END]
    known = {"special_tokens": special, "show_progress": False}
    with_bytes = known | {"special_tokens": [*special, *(f"<0x{i:02X}>" for i in range(256))]}
    spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    # Leaves what spells a special token in one piece, which the model has as an entry.
    words = {"pre_tokenizer": pre_tokenizers.WhitespaceSplit()}
    model, steps, trainer = {
        "unigram": (
            models.Unigram(),
            {"normalizer": normalizers.NFKC(), "pre_tokenizer": pre_tokenizers.Metaspace(),
             "decoder": decoders.Metaspace()},
            trainers.UnigramTrainer(vocab_size=400, unk_token="<unk>", **known),
        ),
        "llama": (
            models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True),
            {"normalizer": normalizers.Sequence(spaces),
             "decoder": decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])},
            trainers.BpeTrainer(vocab_size=700, **with_bytes),
        ),
        "wordpiece": (
            models.WordPiece(unk_token="<unk>"),
            {"normalizer": normalizers.BertNormalizer(), "decoder": decoders.WordPiece(), **words},
            trainers.WordPieceTrainer(vocab_size=500, **known),
        ),
        "wordlevel": (
            models.WordLevel(unk_token="<unk>"), words,
            trainers.WordLevelTrainer(vocab_size=300, **known),
        ),
    }[kind]  # fmt: skip
    tokenizer = tokenizers.Tokenizer(model)
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    tokenizer.train_from_iterator(trained.documents(), trainer)
    if kind == "llama":
        top = json.loads(tokenizer.to_str())
        top["added_tokens"] = [t for t in top["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(top))
    # One that the model does not know, and one that is not special.
    tokenizer.add_special_tokens(["<|pad|>"])
    tokenizer.add_tokens(["xyzzy"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    return tokenizer


@functools.cache
def of_other_models() -> dict[str, str]:
    """Return tokenizers of SentencePiece's and BERT's kinds, by name."""
    llama, bert = (json.loads(made(kind).to_str()) for kind in ("llama", "wordpiece"))
    added, vocab, model = llama["added_tokens"], llama["model"]["vocab"], llama["model"]
    bytes_too = [*added, *(token(text, vocab[text]) for text in vocab if text.startswith("<0x"))]
    turns = [token(text, 702 + i, rstrip=True) for i, text in enumerate(["<|user|>", "<|end|>"])]
    words = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    kinds = {
        "llama2": {},
        "llama2, byte tokens are special": {"added_tokens": bytes_too},
        "llama2, byte tokens are added": {
            "added_tokens": [each | {"special": i < 4} for i, each in enumerate(bytes_too)]
        },
        "llama2, without model.type": {"model": {x: model[x] for x in model if x != "type"}},
        "mistral": {"normalizer": None, "pre_tokenizer": metaspace},
        "phi3": {"added_tokens": [*added, *turns]},
        "gemma": {"normalizer": spaces, "pre_tokenizer": words | {"invert": False}},
        "bert": bert | {"pre_tokenizer": {"type": "BertPreTokenizer"}},
    }
    return {name: json.dumps(llama | changes) for name, changes in kinds.items()}


def both(text: str, directory: Path, config: str | None = None) -> tuple[Any, Any]:
    """Load a tokenizer.json, perhaps beside a tokenizer_config.json: (ours, theirs)."""
    import tokenizers

    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(config)
    theirs = tokenizers.Tokenizer.from_str(text)
    theirs.no_truncation()
    theirs.no_padding()
    return load_tokenizer(directory), theirs


def check_ids(ours: AnyTokenizer, theirs: Any, texts: list[str]) -> list[list[int]]:
    """Compare ids in all ways to encode; return those with special tokens."""
    theirs.encode_special_tokens = False
    found = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert ours.encode_batch(texts) == found
    assert [ours.encode(text) for text in texts] == found
    assert [list(ours.encode_iterable(iter(text))) for text in texts[:2]] == found[:2]
    theirs.encode_special_tokens = True
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ours.encode_ordinary(text) for text in texts] == expected
    documents = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    buffer = np.frombuffer(b"".join(documents), np.uint8)
    encoder = ours.new_encoder()
    ids, ends = encoder.encode(buffer, spans_of(offsets), prefix_id=9, suffix_id=7)
    around = [[9, *document, 7] for document in expected]
    assert ids.tolist() == [number for one in around for number in one]
    assert ends.tolist() == np.cumsum([0, *map(len, around)]).tolist()
    return found
