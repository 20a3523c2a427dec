"""Read and write vocab.json with merges.txt, and tiktoken's files of ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bpe.byte_level import all_from_byte_level, from_byte_level, to_byte_level
from bpe.errors import VocabularyError
from bpe.formats.json_file import dumps, parse_json, read_text, refuse
from bpe.reference import Pair
from bpe.vocabulary import LARGEST_ID, AddedToken, FlatTokens, Vocabulary


def load_gpt2_files(
    vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str]
) -> tuple[dict[int, bytes], list[Pair], dict[str, int]]:
    """Read vocab.json and merges.txt, GPT-2's format.

    Returns:
        Id -> bytes of entries in the byte-level alphabet, the merges, text -> id of other entries.

    Raises:
        TokenizerFileError: A file is unreadable, damaged, or of another format.
    """
    vocab_path, merges_path = Path(vocab_path), Path(merges_path)
    ids = ids_of_vocab(vocab_path, parse_json(read_text(vocab_path), vocab_path), "it")
    tokens, others = tokens_by_id(vocab_path, ids, "it")
    # Not splitlines() or strip(): lines end with a newline only, and a space separates a merge.
    lines = [line.removesuffix("\r") for line in read_text(merges_path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    first = lines[0].split(" ") if lines else [""]
    # "#version" is a header, unless the line is a merge of two tokens of the vocabulary.
    is_header = first[0].startswith("#version") and not (len(first) == 2 and ids.keys() >= {*first})
    merges: list[Pair] = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and (is_header or not line):
            continue
        pair = [from_byte_level(part) for part in line.split(" ")]
        if len(pair) != 2 or not pair[0] or not pair[1]:
            expected = "expected two tokens of the byte-level alphabet with one space between them"
            refuse(merges_path, f"line {number} is {line!r}", expected)
        merges.append((pair[0], pair[1]))
    return tokens.tokens(), merges, others


def load_tiktoken_ranks(path: str | os.PathLike[str]) -> dict[bytes, int]:
    """Read a .tiktoken file: per line, the bytes of a token in base64, a space, its rank.

    Raises:
        TokenizerFileError: The file is unreadable, or a line is invalid.
    """
    import base64
    import binascii

    path = Path(path)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        encoded, _, rank = line.strip().partition(" ")
        try:
            token, number_of_token = base64.b64decode(encoded, validate=True), int(rank)
        except (binascii.Error, ValueError):
            refuse(path, f"line {number} is {line[:80]!r}", "expected base64, a space and a number")
        if token in ranks:
            refuse(path, f"line {number} repeats the token {token!r}", "expected each token once")
        ranks[token] = number_of_token
    return ranks


def tiktoken_ranks(ranks: Mapping[bytes, int]) -> str:
    """Return the text of a .tiktoken file."""
    import base64

    lines = sorted((rank, base64.b64encode(token).decode()) for token, rank in ranks.items())
    return "".join(f"{token} {rank}\n" for rank, token in lines)


def gpt2_files(vocabulary: Vocabulary) -> tuple[str, str]:
    """Return vocab.json and merges.txt; raise VocabularyError if they cannot represent it."""
    vocabulary.check_expressible_as_merges()
    if vocabulary.ignore_merges and len(vocabulary.merges) < vocabulary.n_joined:
        raise VocabularyError(
            "vocab.json and merges.txt cannot represent ignore_merges, and some tokens are made by"
            " no merge; use tokenizer.json"
        )
    ids: dict[str, int] = {}
    entries = [(to_byte_level(token), token_id) for token_id, token in vocabulary.tokens.items()]
    for token in vocabulary.added_tokens:
        entry = (token.text, token.id)
        if token != AddedToken(*entry) or entry in entries:
            raise VocabularyError(
                f"vocab.json cannot say what the added token {token.text!r} is: expected special"
                " tokens without further settings; use tokenizer.json"
            )
        entries.append(entry)
    for text, token_id in sorted(entries, key=lambda entry: entry[1]):
        if text in ids:
            raise VocabularyError(
                f"{text!r} would stand in vocab.json twice, with the ids {ids[text]} and"
                f" {token_id}: use another format"
            )
        ids[text] = token_id
    merges = [f"{to_byte_level(a)} {to_byte_level(b)}\n" for a, b in vocabulary.merges]
    return dumps(ids) + "\n", "#version: 0.2\n" + "".join(merges)


def ids_of_vocab(path: Path, vocab: dict[str, Any], name: str) -> dict[str, int]:
    """Return a vocabulary after checking that its ids are numbers; errors name it `name`."""
    if not set(map(type, vocab.values())) <= {int}:
        key, found = next((key, found) for key, found in vocab.items() if type(found) is not int)
        refuse(path, f"in {name}, {key!r} has the id {dumps(found)}", "expected a number")
    return vocab


def tokens_by_id(
    path: Path, ids: Mapping[str, int], name: str
) -> tuple[FlatTokens, dict[str, int]]:
    """Return tokens of texts in the byte-level alphabet, text -> id of others."""
    texts = list(ids)
    try:
        numbers = np.fromiter(ids.values(), np.int32, len(ids))
    except OverflowError:
        numbers = np.array([-1], np.int32)
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) > LARGEST_ID:
        text = next(text for text in texts if not 0 <= ids[text] <= LARGEST_ID)
        expected = f"expected a whole number from 0 to {LARGEST_ID}"
        refuse(path, f"in {name}, {text!r} has the id {ids[text]}", expected)
    in_order = np.sort(numbers)
    if (in_order[1:] == in_order[:-1]).any():
        first: dict[int, str] = {}
        text = next(text for text in texts if first.setdefault(ids[text], text) != text)
        found = f"in {name}, {text!r} has the id {ids[text]}, which {first[ids[text]]!r} has"
        refuse(path, f"{found} already", "expected one id for each token")
    offsets, data, others = all_from_byte_level(ids)
    is_token = np.ones(len(ids), np.bool_)
    is_token[others] = False
    tokens = FlatTokens(numbers, offsets, data).select(is_token)
    return tokens, {texts[number]: ids[texts[number]] for number in others.tolist()}
