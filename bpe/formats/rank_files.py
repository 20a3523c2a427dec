"""Read and write vocab.json with merges.txt, and tiktoken's files of ranks; convert encodings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec
import numpy as np

from bpe.byte_level import all_from_byte_level, from_byte_level, to_byte_level
from bpe.errors import ArgumentError, PatternError, TokenizerFileError, VocabularyError
from bpe.formats.hf_write import TokenizerParts, check_parts
from bpe.formats.json_file import dumps, parse_json, read_text, refuse
from bpe.reference import Pair
from bpe.split.patterns import TIKTOKEN
from bpe.vocabulary import (
    LARGEST_ID,
    AddedToken,
    FlatTokens,
    Vocabulary,
    ids_of_special,
    make_vocabulary,
)

if TYPE_CHECKING:
    import tiktoken

END_OF_TEXT: Final = "<|endoftext|>"
VocabJson: TypeAlias = dict[str, Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]]


def read_gpt2_files(
    vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str],
    special_tokens: Iterable[str] | None, eos_token: str | None,
) -> TokenizerParts:
    """Read vocab.json and merges.txt, GPT-2's format; see `Tokenizer.from_gpt2_files`."""
    vocab_path, merges_path = Path(vocab_path), Path(merges_path)
    ids = parse_json(read_text(vocab_path), vocab_path, VocabJson)
    flat, others = tokens_by_id(vocab_path, ids, "it")
    merges = _read_merges(merges_path, ids)
    if special_tokens is None:
        special_tokens = [*[END_OF_TEXT] * (END_OF_TEXT in ids), *others]
    vocab = flat.tokens() | {token_id: text.encode() for text, token_id in others.items()}
    try:
        vocabulary = make_vocabulary(vocab, merges, special_tokens)
        return check_parts(TokenizerParts(vocabulary, "gpt2", None, eos_token))
    except VocabularyError as error:
        raise TokenizerFileError(f"{vocab_path} with {merges_path}: {error}") from error


def _read_merges(path: Path, ids: Mapping[str, int]) -> list[Pair]:
    # Not splitlines() or strip(): lines end with a newline only, and a space separates a merge.
    lines = [line.removesuffix("\r") for line in read_text(path).rstrip("\r\n").split("\n")]
    first = lines[0].split(" ")
    # "#version" is a header, unless the line is a merge of two tokens of the vocabulary.
    is_header = first[0].startswith("#version") and not (len(first) == 2 and ids.keys() >= {*first})
    merges: list[Pair] = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and (is_header or not line):
            continue
        pair = [from_byte_level(part) for part in line.split(" ")]
        if len(pair) != 2 or not pair[0] or not pair[1]:
            expected = "expected two tokens of the byte-level alphabet with one space between them"
            refuse(path, f"line {number} is {line!r}", expected)
        merges.append((pair[0], pair[1]))
    return merges


def from_tiktoken(
    source: tiktoken.Encoding | str | os.PathLike[str], pattern: str | None,
    special_tokens: Mapping[str, int] | Iterable[str] | None, eos_token: str | None,
) -> TokenizerParts:
    """Convert an encoding or a .tiktoken file, see `Tokenizer.from_tiktoken`."""
    if isinstance(source, str) and not os.path.exists(source):
        source = _load_encoding(source)
    if isinstance(source, str | os.PathLike):
        ranks = _read_ranks(Path(source))
        if pattern is None:
            raise PatternError(
                f"{os.fspath(source)}: a file of ranks does not say how text is split: "
                "pass pattern=, for example pattern='gpt2'"
            )
    else:
        if not hasattr(source, "_mergeable_ranks"):
            raise ArgumentError(
                "source: should be an encoding of tiktoken, its name, or a path; got"
                f" {source!r:.100}"
            )
        # The README of tiktoken uses these attributes to extend an encoding.
        check_longest_special(source)
        ranks = source._mergeable_ranks
        pattern = TIKTOKEN + source._pat_str if pattern is None else pattern
        special_tokens = source._special_tokens if special_tokens is None else special_tokens
    special = ids_of_special(special_tokens or (), max(ranks.values(), default=-1) + 1)
    try:
        vocabulary = Vocabulary.from_ranks(ranks, special)
    except VocabularyError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise TokenizerFileError(f"{os.fspath(source)}: {error}") from error
    return check_parts(TokenizerParts(vocabulary, pattern, None, eos_token))


def _load_encoding(name: str) -> tiktoken.Encoding:
    """Load an encoding of tiktoken, from its cache or the network, or raise TokenizerFileError."""
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerFileError(
            f"{name}: No such file or directory, and no encoding of tiktoken's has this name:"
            f" expected a path, or one of {', '.join(known)}"
        )
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise TokenizerFileError(
            f"{name}: tiktoken cannot load this encoding: {error}; it downloads the ranks once,"
            " and finds them again where TIKTOKEN_CACHE_DIR says"
        ) from error


def check_longest_special(encoding: tiktoken.Encoding) -> tiktoken.Encoding:
    """Return an encoding; raise VocabularyError if it takes a special token for a shorter one.

    Of special tokens that begin alike, tiktoken takes the first in the order of a hash table.
    """
    for text, token_id in encoding._special_tokens.items():
        if (found := encoding.encode(text, allowed_special="all")) != [token_id]:
            raise VocabularyError(
                f"the special token {text!r} has the id {token_id}, and tiktoken gives {found} for"
                " it, as it finds one that it begins with: expected special tokens of which none"
                " begins with another; use it through tokenizer.json instead"
            )
    return encoding


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read a .tiktoken file: per line, the bytes of a token in base64, a space, its rank.

    Raises:
        TokenizerFileError: The file is unreadable, or a line is invalid.
    """
    import base64

    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        encoded, _, rank = line.strip().partition(" ")
        try:
            token, number_of_token = base64.b64decode(encoded, validate=True), int(rank)
        except ValueError:  # binascii.Error, too
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
    entries = [(token_id, to_byte_level(token)) for token_id, token in vocabulary.tokens.items()]
    texts = {text for _, text in entries}
    for token in vocabulary.added_tokens:
        if token != AddedToken(token.text, token.id) or token.text in texts:
            raise VocabularyError(
                f"vocab.json cannot say what the added token {token.text!r} is: expected special"
                " tokens that are no ordinary token, without further settings; use tokenizer.json"
            )
        entries.append((token.id, token.text))
    merges = [f"{to_byte_level(a)} {to_byte_level(b)}\n" for a, b in vocabulary.merges]
    ids = {text: token_id for token_id, text in sorted(entries)}
    return dumps(ids) + "\n", "#version: 0.2\n" + "".join(merges)


def tokens_by_id(
    path: Path, ids: Mapping[str, int], name: str
) -> tuple[FlatTokens, dict[str, int]]:
    """Return tokens of texts in the byte-level alphabet, text -> id of others."""
    texts, numbers = list(ids), np.fromiter(ids.values(), np.int32, len(ids))
    in_order = np.sort(numbers)
    if len(repeated := in_order[1:][in_order[1:] == in_order[:-1]]):
        first, second = (texts[place] for place in np.flatnonzero(numbers == repeated[0])[:2])
        found = f"in {name}, {second!r} has the id {repeated[0]}, which {first!r} has already"
        refuse(path, found, "expected one id for each token")
    offsets, data, others = all_from_byte_level(ids)
    is_token = np.ones(len(ids), np.bool_)
    is_token[others] = False
    tokens = FlatTokens(numbers, offsets, data).select(is_token)
    return tokens, {texts[number]: ids[texts[number]] for number in others.tolist()}
