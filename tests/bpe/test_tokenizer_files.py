"""Tokenizer files of every format: what is written, what is read, what is refused, by its name."""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import sys
import threading
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import processes
import pytest
import tiktoken
import tiktoken.load
import trained
from nasty import SAMPLES

from bpe import AddedToken, Tokenizer, Vocabulary, load_tokenizer, train_bpe
from bpe.byte_level import to_byte_level
from bpe.errors import EncodingError, PatternError, TokenizerFileError, VocabularyError
from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.hf_write import TokenizerParts, config_json, tokenizer_json, write_tokenizer
from bpe.split.patterns import PATTERNS
from bpe.unicode_classes import UNICODE_VERSION

SPECIAL = ["<|endoftext|>", "<|é \n|>"]
MERGES = [(b"#", b"#"), (b" ", b"a"), (b" a", b"\n"), (b"\xc3", b"\xa9")]
SMALL = TokenizerParts(
    Vocabulary.from_merges(MERGES, SPECIAL), "gpt2", "greatest-bytes", "<|endoftext|>"
)
BASE = Vocabulary.from_merges(trained.merges(), ["<|endoftext|>", "<|pad|>"])
TOKENIZER = Tokenizer.from_vocabulary(BASE)
TEXT = "".join(SAMPLES) + " the end of it\n"


def save(path: Path, parts: TokenizerParts) -> None:
    write_tokenizer(path, tokenizer_json(parts), config_json(parts))


def load(path: Path) -> TokenizerParts:
    return TokenizerFiles.read(path).parts()


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    save(path, SMALL)
    return path


# --- ours ----------------------------------------------------------------------------------------

BYTES = {number: bytes([number]) for number in range(256)}
RANKS = {token: number for number, token in BYTES.items()}
GAPS = {3 * number: token for number, token in BYTES.items()} | {7: b"ab", 1000: b"abc"}
NORMALIZED = Vocabulary(
    {number: BYTES[number] for number in range(0xF5)} | {256: b""}, [],
    [AddedToken("\u212a", 257, normalized=True), AddedToken("<|pad|>", 247)],
    normal_forms=("NFC", "NFKC"),
)
ADDED = [
    AddedToken("  ", 300, special=False, normalized=True),
    AddedToken("<m>", 301, lstrip=True, rstrip=True, single_word=True),
]
VOCABULARIES = {
    "merges": BASE,
    "no merges": Vocabulary.from_merges([]),
    "gaps": Vocabulary(GAPS, [(b"a", b"b"), (b"ab", b"c")], {'<|é", "\\\n|>': 5000}),
    "whole first": Vocabulary(BYTES | {256: b"xyz"}, [], {}, ignore_merges=True),
    "normalized": NORMALIZED,
    "ranks": Vocabulary.from_ranks(
        RANKS | {b"ab": 256, b"abc": 257, b"bc": 258}, {"<|endoftext|>": 300}
    ),
    "added": Vocabulary(BYTES, [], ADDED),
}
PARTS = {name: TokenizerParts(vocabulary, "gpt2") for name, vocabulary in VOCABULARIES.items()} | {
    "all": TokenizerParts(
        NORMALIZED, "o200k", "huggingface", "<|pad|>", False, frozenset({"<|pad|>"})
    ),
    "space in front": TokenizerParts(BASE, "gpt2", add_prefix_space=True),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_read_is_what_was_saved(name: str, tmp_path: Path) -> None:
    path, again = tmp_path / "tokenizer.json", tmp_path / "again.json"
    save(path, PARTS[name])
    assert load(path) == PARTS[name]
    expected, read = Tokenizer._of(PARTS[name]), Tokenizer.from_file(path)
    text = "  é abc xyz ab  bc <|pad|> <m>x <m> <|endoftext|> 12 345" * 3
    for tokenizer in (read, pickle.loads(pickle.dumps(read))):
        assert tokenizer.encode(text) == expected.encode(text)
        assert tokenizer.encode_ordinary(text) == expected.encode_ordinary(text)
        assert tokenizer.decode(expected.encode(text)) == expected.decode(expected.encode(text))
        assert tokenizer.fingerprint == expected.fingerprint
        ours, theirs = tokenizer.vocabulary, expected.vocabulary
        assert (ours, ours.size) == (theirs, theirs.size)
        assert ours.byte_ids.tolist() == theirs.byte_ids.tolist()
        for column, wanted in zip(ours.pair_table(), theirs.pair_table(), strict=True):
            assert column.dtype == wanted.dtype
            assert sorted(column.tolist()) == sorted(wanted.tolist())
        tokenizer.save(again)
        assert again.read_bytes() == path.read_bytes()


def test_the_text_is_that_of_the_format(saved: Path) -> None:
    text = saved.read_text(encoding="utf-8")
    model = json.loads(text)["model"]
    assert [model["vocab"][x] for x in ("Ġa", "<|é \n|>")] == [257, 261]
    assert list(model["vocab"].values()) == list(range(262))
    assert model["merges"] == [["#", "#"], ["Ġ", "a"], ["Ġa", "Ċ"], ["Ã", "©"]]
    assert (model["unicode_version"], model["pattern"]) == (UNICODE_VERSION, "gpt2")
    # One line for each token and each merge: two tokenizers can be compared with diff.
    assert text.endswith("}\n")
    assert text.count("\n") < 262 + len(MERGES) + len(SPECIAL) + 60


# --- Hugging Face's ------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    """Return a small file of Hugging Face's, with settings changed, or tokens left out (None)."""
    vocabulary = Vocabulary.from_merges(MERGES)
    value: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "added_tokens": [
            {"id": 260, "content": "<|end|>", "single_word": False, "lstrip": False}
            | {"rstrip": False, "normalized": True, "special": True}
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "dropout": None, "unk_token": "<|end|>", "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False,
            "vocab": {to_byte_level(token): i for i, token in vocabulary.tokens.items()}
            | {"<|end|>": 260},
            "merges": [" ".join(map(to_byte_level, pair)) for pair in MERGES],
        },
    }
    for path, change in changes.items():
        *parents, name = path.split("__")
        inner = value
        for parent in parents:
            inner = inner[int(parent)] if parent.isdigit() else inner[parent]
        inner[name] = change
    if isinstance(vocab := value["model"]["vocab"], dict):
        value["model"]["vocab"] = {text: i for text, i in vocab.items() if i is not None}
    return value


SPLIT = {"type": "Split", "pattern": {"Regex": PATTERNS["gpt2"]}, "behavior": "Isolated"}
NO_REGEX = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
SEQUENCE = {"type": "Sequence", "pretokenizers": [SPLIT | {"invert": False}, NO_REGEX]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__type": "BPE"},
        {"model__merges": [[to_byte_level(a), to_byte_level(b)] for a, b in MERGES]},
        {"model__dropout": 0.0, "model__byte_fallback": False, "post_processor": None},
        {"model__byte_fallback": True, "model__fuse_unk": True},
        {"pre_tokenizer": SEQUENCE},
        {"model__somebody": "else's key"},
        {"model__vocab__<|end|>": None},  # a special token need not stand there
    ],
)
def test_their_files_with_settings_that_are_implemented_are_read(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    parts = load(write(tmp_path / "tokenizer.json", document(**changes)))
    special = [AddedToken("<|end|>", 260, normalized=True)]
    expected = Vocabulary(Vocabulary.from_merges(MERGES).tokens, MERGES, special)
    # What they say besides is kept, to be written again.
    assert replace(parts, settings="", outside=frozenset()) == TokenizerParts(expected, "gpt2")


def test_an_added_token_of_many_letters_takes_memory_for_its_text_only(tmp_path: Path) -> None:
    """Not for each of its beginnings and ends, where it is looked for in the merges."""
    letters = "a" * 100_000
    file = json.loads(tokenizer_json(SMALL))
    for n in range(100, 500):
        file["model"]["vocab"]["a" * n] = len(file["model"]["vocab"])
    file["model"]["vocab"][letters] = number = len(file["model"]["vocab"])
    file["added_tokens"].append({"id": number, "content": letters, "special": True})
    path = write(tmp_path / "t.json", file)
    tracemalloc.start()
    try:
        assert load(path).vocabulary.special_tokens[letters] == number
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def added(**changes: object) -> dict[str, object]:
    return document()["added_tokens"][0] | changes


def sequence(*steps: object) -> dict[str, object]:
    return {"type": "Sequence", "pretokenizers": [*steps]}


WORDS = SPLIT | {"pattern": {"Regex": r"\w+"}}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"version": "2.0"}, r"version is not implemented or damaged: invalid enum value '2.0'"),
    ({"extra": 1}, r"object contains unknown field `extra`"),
    ({"truncation": {"max_length": 9}}, r"the setting truncation is .*: only null is impl"),
    ({"pre_tokenizer": None}, r"pre_tokenizer has the steps \[\]: only Split and Digits"),
    ({"pre_tokenizer": {"type": "Whitespace"}}, r"is \"Whitespace\": only Split, Digits"),
    ({"pre_tokenizer__use_regex": 1}, r"use_regex is .*: expected `bool`, got `int`"),
    ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": {}}}, r"is \"Sequence\": only Split"),
    ({"pre_tokenizer": sequence(NO_REGEX, {"type": "Digits"})}, r"steps \[\"ByteLevel\","),
    ({"pre_tokenizer": sequence(SPLIT, {"type": "ByteLevel"})}, r"only a ByteLevel alone may have"),
    ({"pre_tokenizer": sequence(SPLIT | {"behavior": "Removed"}, NO_REGEX)}, r"can drop text"),
    ({"pre_tokenizer": sequence(WORDS, NO_REGEX)}, r": pre_tokenizer: unsupported split pattern"),
    ({"post_processor": {"type": "Magic"}}, r"post_processor is \"Magic\": only ByteLevel, Temp"),
    ({"post_processor": 5}, r"post_processor is 5: only ByteLevel, Template"),
    ({"normalizer": {"type": "Sequence", "normalizers": [None]}}, r"normalizer is null: only NFC"),
    ({"normalizer": {"type": "Lowercase"}}, r"normalizer is \"Lowercase\": only NFC, NFD,"),
    ({"decoder": {"type": "Sequence", "decoders": []}}, r"decoder is .*: expected one Byte"),
    ({"decoder": None}, r"decoder is null: expected one ByteLevel"),
    ({"decoder": {"type": "Metaspace"}}, r"decoder is \"Metaspace\": only ByteLevel"),
    ({"model__type": "Unigram"}, r"model.type is not .*: invalid enum value 'Unigram'"),
    ({"model__dropout": 0.1}, r"model.dropout is 0.1: only 0 is implemented"),
    ({"model__end_of_word_suffix": "</w>"}, r"model.end_of_word_suffix .*: invalid enum .*</w>"),
    ({"model__continuing_subword_prefix": "##"}, r"model.continuing_subword_prefix is"),
    ({"model__ignore_merges": 1}, r"model.ignore_merges is .*: expected `bool`, got `int`"),
    ({"model__unicode_version": "15.1.0"}, r"model.unicode_version is \"15.1.0\""),
    ({"model__pattern": "cl100k"}, r"model.pattern is \"cl100k\": expected 'gpt2', as pre_tok"),
    ({"model__pattern": "none"}, r"model.pattern: unknown split pattern 'none'"),
    ({"model__tie_break": "dice"}, r"model.tie_break is .* 'dice'"),
    ({"model__vocab": [["a", 0]]}, r"model.vocab is .*: expected `object`, got `array`"),
    ({"model__merges": {}}, r"model.merges is .*: expected `array`, got `object`"),
    ({"model__merges": ["#"]}, r"model.merges\[0\] is \"#\": expected two tokens"),
    ({"model__merges": [["#", 1]]}, r"model.merges\[0\]\[1\] is .*: expected `str`, got `int`"),
    ({"model__merges": [["#", "#"], ["#", ""]]}, r"model.merges\[1\] is .*: expected two"),
    ({"model__merges": ["x y"]}, r"a merge makes b'xy', which is not in the vocabulary"),
    ({"model__merges": ["x yy"], "model__ranked_by": "bytes"}, r"\[0\] is \"x yy\": expected"),
    ({"model__vocab__日本": 270}, r"'日本' is not spelled in GPT-2's byte-level alphabet"),
    ({"model__vocab__zz": True}, r"model.vocab\[...\] is .*: expected `int`, got `bool`"),
    ({"model__vocab__zz": -1}, r"model.vocab\[...\] is .*: expected `int` >= 0"),
    ({"model__vocab__zz": 5}, r"'zz' has the id 5, which .* has already: expected one id for"),
    ({"model__vocab__Z": None}, r"tokenizer.json: 1 of the bytes in UTF-8.*b'Z'"),
    ({"model__unk_token": "\ud800"}, r"not JSON: .* surrogate pair \(byte \d+\): expected a"),
    ({"added_tokens": ["<x>"]}, r"added_tokens\[0\] is .*: expected `object`, got `str`"),
    ({"added_tokens": [added(rstrip=True), added(content=" x", id=261)]},
     r"'<\|end\|>' has rstrip and ' x' begins with white space"),
    ({"added_tokens__0__special": 1}, r"added_tokens\[0\].special is .*: expected `bool`, got"),
    ({"added_tokens__0__id": 400}, r"has the id 400: expected 260, as Hugging Face would"),
    ({"added_tokens": [added(), added()]}, r"added_tokens\[1\] '<\|end\|>' appears twice"),
    ({"added_tokens": [added(content="<new>", id=262)]}, r"has the id 262: expected 261, as"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), OTHERS)
def test_every_other_setting_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tokenizer.json", document(**changes))
    with pytest.raises(TokenizerFileError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


# --- damage --------------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_is_called_truncated(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "cut.json"
    for length in [*range(1, 400, 7), *range(400, len(data) - 2, 997), len(data) - 2]:
        path.write_bytes(data[:length])
        message = r"in the middle.*it is truncated; copy or|is not UTF-8"
        with pytest.raises(TokenizerFileError, match=message):
            load(path)


def test_ranks_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"".join(base64.b64encode(bytes([x])) + b" %d\n" % x for x in range(256)))
    other = r"is only for a .tiktoken file; this is one under another name: copy it to NAME.tikto"
    with pytest.raises(PatternError, match=other):
        load_tokenizer(path, pattern="llama3")
    for pattern in (None, "llama3"):
        with pytest.raises(TokenizerFileError, match="model: it has tiktoken's ranks, and there"):
            load_tokenizer(tmp_path, pattern=pattern)
    path.rename(tmp_path / "a.tiktoken")
    assert load_tokenizer(tmp_path / "a.tiktoken", pattern="llama3").vocab_size == 256
    with pytest.raises(TokenizerFileError, match=r"no tokenizer\.json in this directory"):
        load_tokenizer(tmp_path, pattern="llama3")
    train_bpe(["a text"], 256).save(tmp_path / "tokenizer.json")
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(PatternError, match="file; this tokenizer says itself how text"):
            load_tokenizer(name, pattern="llama3")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" \n", r"it is empty: expected a tokenizer file; was writing it interr"),
        (b"once upon a time", r"not JSON: .*invalid character .byte 0.: expected a tokenizer file"),
        (b"<!DOCTYPE html>\n<html>", r"it is a web page .HTML. or XML: download the file itself;"),
        (b'{"model": 1}{}', r"model is not implemented or damaged: expected `object`, got `int`"),
        (b"\x1f\x8b\x08\0", r"byte 1 is not UTF-8 .*: expected a text file; it is damaged, or"),
        (b'"text"', r"its content is not implemented or damaged: expected `object`, got `str`"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"a Git LFS pointer: get the file"),
        (b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02", r"Piece: expected a tokenizer.json, as save"),
        (b"IQ== 0\nIg== 1\n", r"tiktoken's ranks, .*: copy it to NAME.tiktoken, and give the spl"),
        (b"IQ== 0\r\nIg== 1\r\n", r"it has tiktoken's ranks, as tokenizer.model of"),
        (b'{"train": 1}', r"object contains unknown field `train`"),
        (b'{"decoder": NaN}', r"not JSON: .*invalid character .byte 12."),
        (b'{"decoder": [1e999]}', r"decoder... is not implemented or damaged: number out of range"),
        (b'{"version": ' * 100_000 + b"1", r"version is not implemented or damaged: expected"),
        (b'{"decoder": ' + b'{"a": ' * 100_000 + b"1", r"stand too deep inside one another"),
        (b'{"model": {"vocab": {"a": 0}}}', r"model is .*: object missing required field `merges`"),
    ],
)
def test_what_is_not_a_tokenizer_is_told_what_it_is(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(TokenizerFileError, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))
    with pytest.raises(TokenizerFileError, match=r"cannot be read: Is a directory"):
        load(tmp_path)


def test_a_device_is_not_read(tmp_path: Path) -> None:
    """For reading it might never end; a pipe is."""
    (tmp_path / "tokenizer.json").symlink_to("/dev/null")
    with pytest.raises(TokenizerFileError, match=r"json: it is a device: expected a tokenizer fil"):
        load_tokenizer(tmp_path)
    train_bpe(["a text"], 256).save(tmp_path / "other.json")
    os.mkfifo(tmp_path / "pipe.json")
    content = (tmp_path / "other.json").read_bytes()
    target = (tmp_path / "pipe.json").write_bytes
    writer = threading.Thread(target=target, args=[content], daemon=True)
    writer.start()
    assert load_tokenizer(tmp_path / "pipe.json") == load_tokenizer(tmp_path / "other.json")
    writer.join()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"tokenizer_config.json: the file ends in the middle"),
        ('{"eos_token": 5}', r"eos_token is not .*: expected `str | object | null`, got `int`"),
        ('{"add_prefix_space": true}', r"add_prefix_space is true: .*tokenizer.json has false, wh"),
        ('{"added_tokens_decoder": 5}', r"added_tokens_decoder is .*, got `int`"),
        ('{"added_tokens_decoder": {"7": "<new>"}}', r"decoder\[...\] is .* got `str`"),
        ('{"extra_special_tokens": [5]}', r"extra_special_tokens\[0\] is not .*, got `int`"),
        ('{"x": [1e999]}', r"json: its content is not implemented or damaged: number out of range"),
        ('{"x": -Infinity}', r"tokenizer_config.json: not JSON: .*invalid character .byte 7."),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    saved: Path, config: str, message: str
) -> None:
    saved.with_name("tokenizer_config.json").write_text(config)
    with pytest.raises(TokenizerFileError, match=message):
        load(saved)


def test_a_configuration_without_an_eos_token_stays_without(saved: Path, tmp_path: Path) -> None:
    # Ours is taken for granted here, but `transformers` would read what we write.
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|endoftext|>"}
    saved.with_name("tokenizer_config.json").write_text(json.dumps(said))
    tokenizer = Tokenizer.from_file(saved)
    assert tokenizer.eos_token == "<|endoftext|>"
    tokenizer.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again_config.json").read_text()) == said
    assert Tokenizer.from_file(tmp_path / "again.json") == tokenizer
    # Theirs may hold an object.
    config = '{"eos_token": {"content": "<|endoftext|>", "lstrip": false}}'
    saved.with_name("tokenizer_config.json").write_text(config)
    assert load(saved).eos_token == "<|endoftext|>"


def with_added(**flags: bool) -> Tokenizer:
    added = [*BASE.added_tokens, AddedToken("<x>", 2000, **flags)]
    return Tokenizer.from_vocabulary(Vocabulary(BASE.tokens, BASE.merges, added))


# --- .tiktoken -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_ranks_are_written_and_read(pattern: str, tmp_path: Path) -> None:
    ours = Tokenizer.from_vocabulary(BASE, pattern=pattern)
    ours.save_tiktoken(tmp_path / "a.tiktoken")
    special = ours.special_tokens
    again = Tokenizer.from_tiktoken(
        str(tmp_path / "a.tiktoken"), pattern=pattern, special_tokens=special
    )
    assert again.encode(TEXT) == ours.encode(TEXT)
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "a.tiktoken"))
    theirs = tiktoken.Encoding(
        "a", pat_str=ours.to_tiktoken()._pat_str, mergeable_ranks=ranks, special_tokens=special
    )
    assert theirs.encode_ordinary(TEXT) == ours.encode_ordinary(TEXT)
    assert Tokenizer.from_tiktoken(theirs) == again
    assert Tokenizer.from_tiktoken(theirs).pattern == pattern
    with pytest.raises(PatternError, match="does not say how text is split: pass pattern="):
        Tokenizer.from_tiktoken(tmp_path / "a.tiktoken")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"it is empty"),
        ("YQ== 0\nYQ==\n", r"line 2 is 'YQ==': expected base64, a space and a number"),
        ("a b c 0\n", r"line 1 is 'a b c 0'"),
        ("Y*== 0\n", r"line 1 is 'Y\*== 0'"),
        ("YQ== 0\nYQ== 1\n", r"line 2 repeats the token b'a'"),
        ("YQ== 8\nYg== 8\n", r"r.tiktoken: tokens b'a' and b'b' share the rank 8: expected one"),
        ("version https://git-lfs.github.com/spec/v1\n", r"it is a Git LFS pointer: .* lfs pull"),
    ],
)
def test_what_is_not_ranks_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.tiktoken").write_text(text)
    with pytest.raises(TokenizerFileError, match=message):
        Tokenizer.from_tiktoken(tmp_path / "r.tiktoken", pattern="gpt2")


def test_gaps_and_special_tokens_in_the_middle(tmp_path: Path) -> None:
    tokens = {i + (i >= 300) * 7: token for i, token in BASE.tokens.items()}
    ranks = {token: i for i, token in tokens.items()}
    # One is an ordinary pre-token, and one stands inside another.
    special = {"<|a|>": 301, "the": 5000, "<|a|><|b|>": 4000}
    pattern = TOKENIZER.to_tiktoken()._pat_str
    theirs = tiktoken.Encoding(
        "gaps", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )
    ours = Tokenizer.from_tiktoken(theirs)
    empty = Tokenizer(BASE.tokens | {999: b""}, BASE.merges, {"<|endoftext|>": 1000})
    assert empty.to_tiktoken().encode(TEXT) == empty.encode(TEXT) == TOKENIZER.encode(TEXT)
    for text in (TEXT, "the<|a|>the <|a|><|b|> thethe", "<|a|><|a|><|b|>"):
        assert ours.encode(text) == theirs.encode(text, allowed_special="all")
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text)
    assert len(ours.fingerprint) == 64
    # tokenizer.json has no two entries with one text.
    with pytest.raises(VocabularyError, match="'the' and the ordinary token b'the' have the same"):
        ours.save(tmp_path / "tokenizer.json")


def test_special_tokens_that_begin_alike() -> None:
    # tiktoken looks for one or the other first, as its hash table has them.
    refused = 0
    for begin in ("<|end", "<a>", "x", "<|x|>", "<s>", "é", "<|", "[INST]"):
        special = {begin: 2000, f"{begin}oftext|>": 2001, f"{begin}>": 2002}
        ours, plain = Tokenizer(BASE.tokens, BASE.merges, special), TOKENIZER.to_tiktoken()
        theirs = tiktoken.Encoding(
            "alike", pat_str=plain._pat_str, mergeable_ranks=plain._mergeable_ranks,
            special_tokens=special,
        )
        text = f"a{begin} {begin}oftext|>{begin}>>"
        if theirs.encode(text, allowed_special="all") == ours.encode(text):
            assert ours.to_tiktoken().encode(text, allowed_special="all") == ours.encode(text)
            assert Tokenizer.from_tiktoken(theirs).encode(text) == ours.encode(text)
            continue
        refused += 1
        with pytest.raises(VocabularyError, match=r"tiktoken gives \[.*\] for it, as it finds"):
            ours.to_tiktoken()
        with pytest.raises(VocabularyError, match=r"expected special tokens of which none begins"):
            Tokenizer.from_tiktoken(theirs)
    assert refused


def test_encodings_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerFileError, match=r"no encoding of tiktoken's .* o200k_base"):
        Tokenizer.from_tiktoken("gpt-99")
    def fails(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", fails)
    with pytest.raises(TokenizerFileError, match=r"cl100k_base: tiktoken cannot load .*no net"):
        Tokenizer.from_tiktoken("cl100k_base")
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: TOKENIZER.to_tiktoken(name))
    assert Tokenizer.from_tiktoken("gpt2").encode(TEXT) == TOKENIZER.encode(TEXT)


def test_what_ranks_cannot_say() -> None:
    for tokenizer in (with_added(special=False), with_added(lstrip=True)):
        with pytest.raises(VocabularyError, match="tiktoken cannot represent changes of text"):
            tokenizer.to_tiktoken()
    other = Tokenizer.from_vocabulary(BASE, pattern=r"\s+|\S+")
    with pytest.raises(PatternError, match="was written for Hugging Face"):
        other.to_tiktoken()


# --- vocab.json and merges.txt -------------------------------------------------------------------


def gpt2_files(directory: Path, header: str = "", ending: str = "\n") -> tuple[Path, Path]:
    vocabulary = Vocabulary.from_merges(MERGES)
    vocab = {to_byte_level(token): i for i, token in vocabulary.tokens.items()}
    lines = [" ".join(map(to_byte_level, pair)) + ending for pair in MERGES]
    (directory / "merges.txt").write_bytes((header + "".join(lines)).encode())
    vocab_path = write(directory / "vocab.json", vocab | {"<|endoftext|>": 260})
    return vocab_path, directory / "merges.txt"


def test_gpt2_files_are_written_and_read(tmp_path: Path) -> None:
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    TOKENIZER.save_gpt2_files(vocab, merges)
    again = Tokenizer.from_gpt2_files(
        vocab, merges, ["<|endoftext|>", "<|pad|>", "<|new|>"], eos_token="<|pad|>"
    )
    assert again.special_tokens == TOKENIZER.special_tokens | {"<|new|>": BASE.size}
    assert (again.merges, again.eos_token) == (TOKENIZER.merges, "<|pad|>")
    assert merges.read_text("utf-8").startswith("#version: 0.2\n")


@pytest.mark.parametrize("header", ["", "#version: 0.2\n", "#version: 0.2 - Trained by x\n"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_merges_are_read_with_and_without_a_header(
    header: str, ending: str, tmp_path: Path
) -> None:
    found = Tokenizer.from_gpt2_files(*gpt2_files(tmp_path, header, ending)).vocabulary
    assert found == Vocabulary.from_merges(MERGES, ["<|endoftext|>"])


def test_peculiarities_of_published_files(tmp_path: Path) -> None:
    vocab_path, merges_path = gpt2_files(tmp_path, "Ġ a\nà ¤\n")
    lacking = {to_byte_level(bytes([byte])) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
    vocab = json.loads(vocab_path.read_text()) | {"": 261, "à¤": 262, "日本": 263}
    write(vocab_path, {text: i for text, i in vocab.items() if text not in lacking})
    tokenizer = Tokenizer.from_gpt2_files(vocab_path, merges_path)
    # Of the merge that is there twice, the last counts.
    assert tokenizer.merges == [(b"\xe0", b"\xa4"), *MERGES]
    assert tokenizer.special_tokens == {"<|endoftext|>": 260, "日本": 263}
    assert tokenizer.encode(" aहé<|endoftext|>") == [257, 262, 185, 259, 260]
    assert (tokenizer.decode([261, 262, 185]), tokenizer.vocab[261]) == ("ह", b"")
    with pytest.raises(EncodingError, match="token id 192 is not in the vocabulary"):
        tokenizer.decode(np.array([192]))
    # What looks like a header and is none.
    merges_path.write_text("#version :\n")
    write(vocab_path, vocab | {"#version": 264, "#version:": 265})
    found = Tokenizer.from_gpt2_files(vocab_path, merges_path).merges
    assert found == [(b"#version", b":")]


@pytest.mark.parametrize("line", ["", "a", "a  b", " a", "a b c", "a\tb", "日 本"])
def test_a_line_that_is_no_merge_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    vocab_path, merges_path = gpt2_files(tmp_path, "#version: 0.2\n")
    lines = merges_path.read_text(encoding="utf-8").split("\n")
    lines.insert(2, line)
    merges_path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TokenizerFileError, match=r"merges.txt: line 3 is .*: expected two tokens"):
        Tokenizer.from_gpt2_files(vocab_path, merges_path)


def test_a_vocabulary_without_bytes(tmp_path: Path) -> None:
    vocab_path, merges_path = gpt2_files(tmp_path)
    merges_path.write_text("#version: 0.2\n")
    message = r"vocab.json with .*merges.txt: .* bytes in UTF-8 have no token"
    with pytest.raises(TokenizerFileError, match=message):
        Tokenizer.from_gpt2_files(write(vocab_path, {"a": 0}), merges_path)


WHOLE = Vocabulary({**BASE.tokens, 3000: b"abcxyz"}, BASE.merges, {}, ignore_merges=True)


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (Tokenizer.from_vocabulary(BASE, pattern="llama3"), "'llama3' is not gpt2, which is"),
        (with_added(single_word=True), "merges.txt cannot represent changes of text before"),
        (with_added(normalized=True), "merges.txt cannot represent changes of text before"),
        (Tokenizer.from_vocabulary(WHOLE), "ignore_merges, and some tokens are made by no"),
        (Tokenizer(BASE.tokens, BASE.merges, {"Ġ": 999}), "what the added token 'Ġ' is: exp"),
    ],
)
def test_what_gpt2_files_cannot_say(tokenizer: Tokenizer, message: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=message):
        tokenizer.save_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert not list(tmp_path.iterdir())


# --- Hugging Face's hub --------------------------------------------------------------------------


class _NotFoundError(Exception):
    pass


class _NotCachedError(_NotFoundError):
    pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is used of huggingface_hub; `asked` are the files that were downloaded."""

    def download(name: str, file: str) -> str:
        fake.asked.append((name, file))
        if not (tmp_path / file).exists():
            raise fake.missing(f"404: {file}")
        return str(tmp_path / file)

    errors = SimpleNamespace(
        EntryNotFoundError=_NotFoundError, LocalEntryNotFoundError=_NotCachedError,
        HfHubHTTPError=_NotFoundError,
    )
    fake = SimpleNamespace(
        asked=[], missing=_NotFoundError, errors=errors, hf_hub_download=download,
        hf_hub_url=lambda name, file: f"https://hub/{name}/{file}",
        get_hf_file_metadata=lambda url: None, try_to_load_from_cache=lambda name, file: None,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_a_name_on_the_hub(tmp_path: Path, hub: SimpleNamespace) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    assert Tokenizer.from_huggingface(tmp_path) == TOKENIZER
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    assert [file for _, file in hub.asked] == ["tokenizer.json", "tokenizer_config.json"]
    # What is in the cache is not asked for, nor what is known there not to exist.
    hub.try_to_load_from_cache = lambda name, file: str(tmp_path / file)
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    known = {"tokenizer.json": str(tmp_path / "tokenizer.json")}
    hub.try_to_load_from_cache = lambda name, file: known.get(file, object())
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    assert len(hub.asked) == 2
    known.clear()
    with pytest.raises(TokenizerFileError, match=r"Face's hub it has no tokenizer\.json"):
        Tokenizer.from_huggingface("somebody/model")


def test_a_tokenizer_that_is_code(tmp_path: Path, hub: SimpleNamespace) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.X"]}}')
    for name in (tmp_path, "somebody/model"):
        with pytest.raises(TokenizerFileError, match=r"names code \(auto_map\) that would be need"):
            Tokenizer.from_huggingface(name)


def test_a_hub_that_gives_nothing(
    tmp_path: Path, hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (OSError, ValueError, _NotFoundError):
        hub.missing = error
        with pytest.raises(TokenizerFileError, match=r"hub gave no tokenizer\.json: .*: 404"):
            Tokenizer.from_huggingface("somebody/model")
    # Without a configuration it is another tokenizer, so that there is none has to be certain.
    TOKENIZER.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").unlink()
    for error in (OSError, _NotCachedError):
        hub.missing = error
        with pytest.raises(TokenizerFileError, match=r"hub gave no tokenizer_config\.json: "):
            Tokenizer.from_huggingface("somebody/model")
    hub.missing = _NotFoundError
    assert Tokenizer.from_huggingface("somebody/model").eos_token == TOKENIZER.eos_token
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TokenizerFileError, match="hub, install huggingface_hub: pip"):
        Tokenizer.from_huggingface("somebody/model")


def test_a_hub_without_a_network_is_asked_twice(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra `hf`")
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with suppress(OSError):
                while True:
                    with server.accept()[0] as connection:
                        asked.append(connection.recv(100))

        threading.Thread(target=hang_up, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        done = processes.run(
            "-m", "preprocess", "count", __file__, "--tokenizer", "some/name", expected_exit=1,
            HF_ENDPOINT=endpoint, HF_HUB_OFFLINE="0",
        )
        (line,) = done.stderr.splitlines()
        assert line.startswith("tokenmill: error: some/name: No such file or directory, and Hugg")
        assert sum(b"/some/name/" in each for each in asked) == 2


def test_an_object_that_is_no_tokenizer() -> None:
    with pytest.raises(TokenizerFileError, match=r"source: should be a tokenizers\.Tokenizer"):
        Tokenizer.from_huggingface(3)
