"""Every kind of vocabulary and setting is the same after it was saved and read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import trained

from bpe import Tokenizer
from bpe.errors import TokenizerFileError
from bpe.formats.hf_write import TokenizerParts, save
from bpe.vocabulary import AddedToken, Vocabulary

MERGES = trained.merges()[:200]
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abc": 257, b"bc": 258}
VOCABULARIES = {
    "merges": Vocabulary.from_merges(MERGES, ["<|endoftext|>", "<|pad|>"]),
    "no merges": Vocabulary.from_merges([]),
    "gaps": Vocabulary(
        {3 * number: bytes([number]) for number in range(256)} | {7: b"ab", 1000: b"abc"},
        [(b"a", b"b"), (b"ab", b"c")],
        {"<|é|>": 5000},
    ),
    "whole first": Vocabulary(
        {number: bytes([number]) for number in range(256)} | {256: b"xyz"},
        [],
        {},
        ignore_merges=True,
    ),
    "normalized": Vocabulary(
        {number: bytes([number]) for number in range(0xF5)} | {256: b""},
        [],
        [AddedToken("\u212a", 257, normalized=True), AddedToken("<|pad|>", 247)],
        normal_forms=("NFC", "NFKC"),
    ),
    "ranks": Vocabulary.from_ranks(RANKS, {"<|endoftext|>": 300}),
    "added": Vocabulary(
        {number: bytes([number]) for number in range(256)},
        [],
        [
            AddedToken("  ", 300, special=False, normalized=True),
            AddedToken("<m>", 301, lstrip=True, rstrip=True, single_word=True),
        ],
    ),
}
PARTS = {name: TokenizerParts(vocabulary, "gpt2") for name, vocabulary in VOCABULARIES.items()} | {
    "all": TokenizerParts(
        VOCABULARIES["normalized"],
        "o200k",
        "huggingface",
        "<|pad|>",
        False,
        frozenset({"<|pad|>"}),
    ),
    "space in front": TokenizerParts(VOCABULARIES["merges"], "gpt2", add_prefix_space=True),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_read_is_what_was_saved(name: str, tmp_path: Path) -> None:
    path, again = tmp_path / "tokenizer.json", tmp_path / "again.json"
    save(path, PARTS[name])
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


def test_a_pattern_that_is_no_unicode(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, TokenizerParts(VOCABULARIES["merges"], r"\p{L}+|."))
    document = json.loads(path.read_text())
    split = document["pre_tokenizer"]["pretokenizers"][0]
    split["pattern"]["Regex"] += "|\ud800"
    del document["model"]["pattern"]
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerFileError, match=r"it has a lone surrogate, '\\ud800'"):
        Tokenizer.from_file(path)
