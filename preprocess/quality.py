"""What a token file is like to train on: what occurs in it, how often, and what occurs twice.

Law: every token and every document is looked at, a part of the file at a time; nothing is taken
from a sample, and what was not looked at is said. Memory is that of the vocabulary and of one part,
and 8 bytes for each document: documents are compared by the xxh3_64 of their ids, so that among a
hundred million of them one pair in three thousand corpora is taken for copies wrongly.

Each judgement is a dictionary, ready for JSON; `lines` puts one into words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 20
_DOCUMENTS_AT_A_TIME = 1 << 18
# Documents up to this length are counted by their length, the few that are longer one by one.
_COUNTED_LENGTHS = 1 << 20
_SHARES = (0, 1, 10, 50, 90, 99, 100)
_LISTED = 5
_SAMPLES = 3
_SAMPLE_TOKENS = 24
_REPLACEMENT = "\ufffd".encode()
# In no text: it keeps apart what does not belong together.
_NO_TEXT = b"\xff"

Facts = dict[str, Any]


def facts(file: TokenFile, tokenizer: AnyTokenizer | None) -> Facts:
    """What there is to say about a token file, but for copies of documents.

    Args:
        file: The token file.
        tokenizer: The one that it was built with; None leaves out what needs it.

    Raises:
        TokenFileError: The file is damaged.
    """
    manifest = file.manifest
    counts = occurrences(file)
    found: Facts = {
        "path": str(file.path),
        "dtype": file.dtype.name,
        "tokens": file.n_tokens,
        "documents": file.n_documents,
        "shards": len(manifest.shards),
        "bytes": manifest.n_bytes,
        "bytes_per_token": manifest.n_bytes / max(file.n_tokens, 1),
        "vocab_size": file.vocab_size,
        "ids_that_occur": int(np.count_nonzero(counts)),
        "end_of_text_id": manifest.end_of_text_id,
        "begin_of_text_id": manifest.begin_of_text_id,
        "sources": [str(source.get("name")) for source in manifest.sources],
        **_lengths(file),
    }
    if tokenizer is not None:
        found["vocabulary"] = of_vocabulary(counts, tokenizer)
        found |= _spelled(file, counts, tokenizer)
        found["samples"] = list(_samples(file, tokenizer))
    return found


def occurrences(file: TokenFile) -> NDArray[np.int64]:
    """How often each id occurs: int64[vocab_size].

    Raises:
        TokenFileError: An id is not in the vocabulary.
    """
    counts = np.zeros(file.vocab_size, np.int64)
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        part = file.tokens[start : start + _TOKENS_AT_A_TIME]
        if int(part.max()) >= file.vocab_size:
            place = start + int((part >= file.vocab_size).argmax())
            raise TokenFileError(
                f"{file.path}: token {place:,} should be an id of 0 to {file.vocab_size - 1:,} and"
                f" is {file[place]:,}; {_damaged(file)}"
            )
        found = np.bincount(part)
        counts[: len(found)] += found
    return counts


def _damaged(file: TokenFile) -> str:
    return (
        f"the file is damaged: 'tokenbin verify {file.path}' says where, and with --repair makes it"
        " again from the sources"
    )


# --- documents
# --------------------------------------------------------------------------------------


def _documents(file: TokenFile) -> Iterator[NDArray[np.int64]]:
    """Where documents begin, and behind them where the last of them ends.

    Yields:
        int64[n + 1] for n documents, `_DOCUMENTS_AT_A_TIME` or what is left.

    Raises:
        TokenFileError: An end is not where one can be.
    """
    before = number = start = 0
    for ids, ends_of_shard in file.shards:
        for first in range(0, len(ends_of_shard), _DOCUMENTS_AT_A_TIME):
            ends = ends_of_shard[first : first + _DOCUMENTS_AT_A_TIME]
            # What does not fit is negative here, and so not behind what comes before it.
            bounds = np.concatenate([np.array([before]), ends.astype(np.int64) + start])
            bad = (bounds[1:] <= bounds[:-1]) | (bounds[1:] > start + len(ids))
            if bad.any():
                place = int(bad.argmax())
                raise TokenFileError(
                    f"{file.path}: document {number + place:,} should end behind token"
                    f" {int(bounds[place]):,} and at most at {start + len(ids):,}, and ends at"
                    f" {int(ends[place]) + start:,}; {_damaged(file)}"
                )
            before = int(bounds[-1])
            number += len(ends)
            yield bounds
        start += len(ids)
    if before != file.n_tokens:
        raise TokenFileError(
            f"{file.path}: the last document should end at"
            f" {file.n_tokens:,}, the number of tokens, and ends at {before:,}; {_damaged(file)}"
        )


def _lengths(file: TokenFile) -> Facts:
    """How long documents are, in tokens, those around them included; and how many hold nothing."""
    counted = np.zeros(_COUNTED_LENGTHS, np.int64)
    longer = []
    for bounds in _documents(file):
        lengths = np.diff(bounds)
        counted += np.bincount(lengths[lengths < len(counted)], minlength=len(counted))
        longer.append(lengths[lengths >= len(counted)])
    around = 1 if file.manifest.begin_of_text_id is None else 2
    if not file.n_documents:
        return {"empty_documents": 0, "tokens_per_document": None}
    upto, long_ones = np.cumsum(counted), np.sort(np.concatenate(longer))

    def at(share: int) -> int:
        rank = round(share / 100 * (file.n_documents - 1))
        if rank < upto[-1]:
            return int(np.searchsorted(upto, rank, side="right"))
        return int(long_ones[rank - upto[-1]])

    return {
        "empty_documents": int(counted[: around + 1].sum()),
        "tokens_per_document": {
            "mean": file.n_tokens / file.n_documents,
            "percentiles": {str(share): at(share) for share in _SHARES},
        },
    }


def document_hashes(file: TokenFile) -> NDArray[np.uint64]:
    """xxh3_64 of the ids of each document, in rising order: uint64[n_documents].

    Raises:
        TokenFileError: The file is damaged.
    """
    hashes = np.empty(file.n_documents, np.uint64)
    done = 0
    for bounds in _documents(file):
        first, n = 0, len(bounds) - 1
        while first < n:
            # Whole documents that are few enough tokens to be read at once, or one that is not.
            stop = int(np.searchsorted(bounds, bounds[first] + _TOKENS_AT_A_TIME, "right")) - 1
            if stop <= first:
                hashes[done] = _hash_of_parts(file, int(bounds[first]), int(bounds[first + 1]))
                stop = first + 1
            else:
                part = file.tokens[int(bounds[first]) : int(bounds[stop])]
                data = np.ascontiguousarray(part).view(np.uint8).data
                places = ((bounds[first : stop + 1] - bounds[first]) * part.itemsize).tolist()
                hashes[done : done + stop - first] = [
                    xxhash.xxh3_64_intdigest(data[start:end]) for start, end in pairwise(places)
                ]
            done += stop - first
            first = stop
    hashes.sort()
    return hashes


def _hash_of_parts(file: TokenFile, start: int, stop: int) -> int:
    digest = xxhash.xxh3_64()
    for place in range(start, stop, _TOKENS_AT_A_TIME):
        part = file.tokens[place : min(place + _TOKENS_AT_A_TIME, stop)]
        digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return int(digest.intdigest())


def copies(hashes: NDArray[np.uint64]) -> int:
    """How many documents are copies of one that was counted: n_documents less the different ones.

    Args:
        hashes: As `document_hashes` gives them.
    """
    found = 0
    for start in range(0, len(hashes), _DOCUMENTS_AT_A_TIME):
        part = hashes[start : start + _DOCUMENTS_AT_A_TIME + 1]
        found += int(np.count_nonzero(part[1:] == part[:-1]))
    return found


def shared(of_val: NDArray[np.uint64], of_train: NDArray[np.uint64]) -> int:
    """How many documents of one file are in another, too.

    Args:
        of_val: The hashes of the documents that are counted, as `document_hashes` gives them.
        of_train: Those of the other file.
    """
    if not len(of_train):
        return 0
    found = 0
    for start in range(0, len(of_val), _DOCUMENTS_AT_A_TIME):
        part = of_val[start : start + _DOCUMENTS_AT_A_TIME]
        places = np.searchsorted(of_train, part)
        places[places == len(of_train)] = 0
        found += int(np.count_nonzero(of_train[places] == part))
    return found


def _samples(file: TokenFile, tokenizer: AnyTokenizer) -> Iterator[Facts]:
    """How a few documents begin, from the first to the last."""
    last = file.n_documents - 1
    wanted = sorted({last * i // (_SAMPLES - 1) for i in range(_SAMPLES)})
    first = 0
    for bounds in _documents(file):
        for number in wanted:
            if first <= number < first + len(bounds) - 1:
                start, stop = (int(place) for place in bounds[number - first :][:2])
                ids = file[start : min(stop, start + _SAMPLE_TOKENS)]
                text = tokenizer.decode_bytes(ids).decode("utf-8", "replace")
                yield {"document": number, "begins": text}
        first += len(bounds) - 1


# --- vocabulary
# --------------------------------------------------------------------------------------


def of_vocabulary(counts: NDArray[np.int64], tokenizer: AnyTokenizer) -> Facts:
    """What of the vocabulary occurs, how often, and what does not; special tokens apart.

    Args:
        counts: As `occurrences` gives them.
        tokenizer: The one that the file was built with.
    """
    spelled = tokenizer.vocab
    special = set(tokenizer.special_tokens.values())
    ordinary = np.array(sorted(i for i in spelled if i not in special and i < len(counts)), int)
    used, unused = ordinary[counts[ordinary] > 0], ordinary[counts[ordinary] == 0]
    single = [i for i in used.tolist() if len(spelled[i]) == 1]
    n_single = int(counts[single].sum()) if single else 0

    def named(ids: Iterable[int]) -> list[Facts]:
        return [
            {"id": i, "token": spelled[i].decode("utf-8", "replace"), "count": int(counts[i])}
            for i in ids
        ]

    # Among equals the smallest id comes first.
    most = used[np.argsort(-counts[used], kind="stable")[:_LISTED]]
    least = used[np.argsort(counts[used], kind="stable")[:_LISTED]]
    return {
        "most_frequent": named(most.tolist()),
        "rarest": named(least.tolist()),
        "ordinary_tokens": len(ordinary),
        "unused": len(unused),
        "unused_first": named(unused[:_LISTED].tolist()),
        "single_bytes": n_single,
        "single_bytes_share": n_single / max(int(counts.sum()), 1),
    }


# --- text
# --------------------------------------------------------------------------------------


def _spelled(file: TokenFile, counts: NDArray[np.int64], tokenizer: AnyTokenizer) -> Facts:
    """How often documents hold U+FFFD, and spell special tokens that are ordinary text there."""
    from bpe import Tokenizer

    if not isinstance(tokenizer, Tokenizer):
        return {"replacement_characters": None, "look_alikes": None}
    special = tokenizer.special_tokens
    needles = [_REPLACEMENT, *(text.encode() for text in special)]
    replacements, *look_alikes = _Search(needles, counts, tokenizer).count(file)
    return {
        "replacement_characters": replacements,
        "look_alikes": {text: n for text, n in zip(special, look_alikes, strict=True) if n},
    }


class _Search:
    """Counts texts in the text of a token file, each place where one begins.

    To decode a whole file takes a minute for every ten gigabytes. So the first look is at ids: a
    text begins in a token that holds all of it, or in one that ends as the text begins and stands
    before one that goes on as the text does. Only the surroundings of such tokens are decoded.

    Args:
        needles: What is looked for, as UTF-8, none empty.
        counts: How often each id occurs, as `occurrences` gives it.
        tokenizer: The one that the file was built with.
    """

    def __init__(
        self, needles: list[bytes], counts: NDArray[np.int64], tokenizer: AnyTokenizer
    ) -> None:
        self._needles = needles
        # A text lies in at most so many tokens behind the one in which it begins.
        self._reach = max(map(len, needles)) - 1
        special = set(tokenizer.special_tokens.values())
        tokens = [_NO_TEXT] * (len(counts) + 1)
        for token_id, token in tokenizer.vocab.items():
            if token_id not in special and token_id < len(counts):
                tokens[token_id] = token
        self._gap = len(counts)
        self._bytes = np.frombuffer(b"".join(tokens), np.uint8)
        self._n_bytes = np.array([len(token) for token in tokens], np.int64)
        self._starts = np.cumsum(self._n_bytes) - self._n_bytes

        beginnings = {needle[:n] for needle in needles for n in range(1, len(needle))}
        endings = {needle[n:] for needle in needles for n in range(1, len(needle))}
        middles = {ending[:n] for ending in endings for n in range(1, len(ending) + 1)}
        self._holds, self._ends_so, self._goes_on = np.zeros((3, len(tokens)), bool)
        for token_id in np.flatnonzero(counts).tolist():
            token = tokens[token_id]
            upto = range(1, min(len(token), self._reach) + 1)
            self._holds[token_id] = any(needle in token for needle in needles)
            self._ends_so[token_id] = any(token[-n:] in beginnings for n in upto)
            self._goes_on[token_id] = token in middles or any(token[:n] in endings for n in upto)

    def count(self, file: TokenFile) -> list[int]:
        """How often each needle begins anywhere in a file, in the order of the needles."""
        found = [0] * len(self._needles)
        for start in range(0, len(file), _TOKENS_AT_A_TIME):
            n = min(_TOKENS_AT_A_TIME, len(file) - start)
            part = file.tokens[start : start + n + self._reach]
            here = self._holds[part]
            here[:-1] |= self._ends_so[part[:-1]] & self._goes_on[part[1:]]
            # What begins behind `n` belongs to the next part.
            places = np.flatnonzero(here[:n])
            if len(places):
                text, stop = self._around(part, places, n)
                for number, needle in enumerate(self._needles):
                    found[number] += _beginnings(text, needle, stop)
        return found

    def _around(
        self, part: NDArray[np.unsignedinteger[Any]], places: NDArray[np.int64], n: int
    ) -> tuple[bytes, int]:
        """(the text of the tokens at `places` and within reach, where that of token `n` begins)."""
        stops = np.minimum(places + self._reach + 1, len(part))
        # Places whose surroundings touch are one run; a gap stands behind each run.
        is_first = np.append(True, places[1:] > stops[:-1])
        firsts = places[is_first]
        n_ids = stops[np.append(is_first[1:], True)] - firsts + 1
        ends_of_runs = np.cumsum(n_ids)
        chosen = np.repeat(firsts - ends_of_runs + n_ids, n_ids) + np.arange(ends_of_runs[-1])
        ids = part[np.minimum(chosen, len(part) - 1)].astype(np.int64)
        ids[ends_of_runs - 1] = self._gap
        n_bytes = self._n_bytes[ids]
        ends = np.cumsum(n_bytes)
        places_of_bytes = np.repeat(self._starts[ids] - ends + n_bytes, n_bytes)
        places_of_bytes += np.arange(len(places_of_bytes))
        # The first place is before `n`, so at least one token is.
        stop = int(ends[np.searchsorted(chosen, n) - 1])
        return self._bytes[places_of_bytes].tobytes(), stop


def _beginnings(text: bytes, needle: bytes, stop: int) -> int:
    """The number of places before `stop` where `needle` begins; they may overlap."""
    found, place = 0, text.find(needle)
    while 0 <= place < stop:
        found += 1
        place = text.find(needle, place + 1)
    return found


# --- words
# --------------------------------------------------------------------------------------


def lines(found: Facts) -> list[str]:
    """What `facts` and its caller say of a token file, for people.

    Args:
        found: What `facts` gives; "copies" and "no_tokenizer" are said where they are there.
    """
    shards = f", {found['shards']:,} shards" if found["shards"] else ""
    said = [
        f"{found['path']}: {found['tokens']:,} tokens ({found['dtype']}), {found['documents']:,}"
        f" documents{shards}",
        f"  {found['bytes']:,} bytes of text, {found['bytes_per_token']:.2f} to the token",
        f"  vocabulary {found['vocab_size']:,}, of which {found['ids_that_occur']:,} occur; end of"
        f" text {found['end_of_text_id']}, begin of text {found['begin_of_text_id']}",
        f"  sources: {_sources(found['sources'])}",
    ]
    if lengths := found["tokens_per_document"]:
        shares = (f"{share} % {value:,}" for share, value in lengths["percentiles"].items())
        said += [
            f"  tokens per document: {lengths['mean']:,.1f} on average",
            f"  tokens per document, by share of documents: {', '.join(shares)}",
        ]
    repeated = ""
    if "copies" in found:
        share = _percent(found["copies"] / max(found["documents"], 1), 1)
        repeated = f"; copies of other documents: {found['copies']:,} ({share})"
    said.append(f"  empty documents: {found['empty_documents']:,}{repeated}")
    if "no_tokenizer" in found:
        return [*said, f"  no sample, for its tokenizer is not beside it: {found['no_tokenizer']}"]
    vocabulary = found["vocabulary"]
    said += [
        f"  most frequent: {_tokens(vocabulary['most_frequent'])}",
        f"  rarest: {_tokens(vocabulary['rarest'])}",
        f"  {vocabulary['unused']:,} of {vocabulary['ordinary_tokens']:,} ordinary tokens do not"
        f" occur{_first(vocabulary)}",
        f"  single bytes: {_percent(vocabulary['single_bytes_share'], 2)} of all tokens",
    ]
    if found["look_alikes"] is None:
        said.append(
            "  replacement characters and text that spells special tokens: not looked for, for its"
            " tokenizer is not a byte-level one; stats.json says what was found on encoding"
        )
    else:
        said.append(f"  replacement characters U+FFFD: {found['replacement_characters']:,}")
        said.append(f"  text that spells special tokens: {_times(found['look_alikes'])}")
    return said + [
        f"  document {sample['document']:,} begins: {sample['begins']!r}"
        for sample in found["samples"]
    ]


def shared_line(found: Facts) -> str:
    """What a directory says of a validation file and its train file.

    Args:
        found: "val" and "train", their names; "documents" of val; and "in_train", how many of them
            are in train, or "not_compared", why that is not known.
    """
    if "not_compared" in found:
        return f"{found['val']} in {found['train']}: not compared, for {found['not_compared']}"
    return (
        f"{found['val']} in {found['train']}: {found['in_train']:,} of {found['documents']:,}"
        " validation documents are in train as well"
    )


def run_line(stats: Facts) -> str:
    """What stats.json says of text that did not become documents as it stood.

    Args:
        stats: What it says.
    """
    found = {token: n for token, n in stats["look_alikes"].items() if n}
    return (
        f"dropped on encoding: {stats.get('empty_documents', 0):,} empty documents,"
        f" {stats.get('skipped_documents', 0):,} that were not UTF-8;"
        f" {stats.get('replaced_sequences', 0):,} sequences became U+FFFD; text that"
        f" spelled special tokens: {_times(found)}"
    )


def _sources(names: list[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def _tokens(tokens: list[Facts]) -> str:
    return ", ".join(f"{each['token']!r} {each['count']:,}" for each in tokens) or "none"


def _first(vocabulary: Facts) -> str:
    named = ", ".join(repr(each["token"]) for each in vocabulary["unused_first"])
    return f", as {named}" if named else ""


def _times(counts: dict[str, int]) -> str:
    return ", ".join(f"{text!r} {n:,} times" for text, n in counts.items()) or "none"


def _percent(share: float, digits: int) -> str:
    return f"{share:.{digits}%}".replace("%", " %")
