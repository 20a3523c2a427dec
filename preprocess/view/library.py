"""What the page shows: datasets and tokenizers by their names, and the pass over each dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from bpe.parallel import Task, cached_property, start_thread
from preprocess.check.inspect import is_manifest
from preprocess.check.report_numbers import find_datasets, script_of
from preprocess.check.scan import KEPT, Scan, spans_of_documents
from preprocess.dataset.reader import TokenFile, check_tokenizer, open_tokens
from preprocess.locations import url_name
from preprocess.run.outputs import TOKENIZER_FILE, names_of_datasets
from preprocess.settings import read_tokenizer
from preprocess.storage import open_files

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Answer = dict[str, Any]
_Shown = TypeVar("_Shown")


class ViewError(TokenmillError, ValueError):
    """There is nothing to show, or it was asked for wrongly."""


class ViewedTokenizer:
    """A tokenizer, its name on the page and its location in Python code.

    Attributes:
        vocabulary: Its merges; None if it does not merge bytes.
        special_ids: Ids of the special tokens.
    """

    def __init__(self, name: str, location: str, tokenizer: AnyTokenizer) -> None:
        from bpe import Tokenizer

        self.name, self.location, self.tokenizer = name, location, tokenizer
        self.vocabulary = tokenizer.vocabulary if isinstance(tokenizer, Tokenizer) else None
        self.special_ids = frozenset(tokenizer.special_tokens.values())

    @cached_property
    def bytes_of_id(self) -> Mapping[int, bytes]:
        """Id -> bytes, special tokens included; without a `vocabulary` as the file spells them."""
        if self.vocabulary is None:
            return self.tokenizer.vocab
        return self.vocabulary.bytes_of_id  # without a copy

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of bytes of each id, 0 for an id without a token: int64[vocab_size]."""
        found = np.zeros(self.tokenizer.vocab_size, np.int64)
        found[[*self.bytes_of_id]] = [*map(len, self.bytes_of_id.values())]
        return found

    @cached_property
    def scripts(self) -> NDArray[np.str_]:
        """Script of the letters of each id, see `script_of`: str[vocab_size]."""
        found = np.full(self.tokenizer.vocab_size, "no letters", "<U32")
        for token_id, content in self.bytes_of_id.items():
            found[token_id] = script_of(content.decode("utf-8", "ignore"))
        return found

    @cached_property
    def merges(self) -> dict[bytes, tuple[int, bytes, bytes]]:
        """Token -> (rank, left, right) of the first merge that makes it."""
        found: dict[bytes, tuple[int, bytes, bytes]] = {}
        merges = [] if self.vocabulary is None else self.vocabulary.merges
        for rank, (left, right) in enumerate(merges):
            found.setdefault(left + right, (rank, left, right))
        return found

    @cached_property
    def id_of_bytes(self) -> dict[bytes, int]:
        """Bytes -> id of each token."""
        return {token: token_id for token_id, token in reversed([*self.bytes_of_id.items()])}

    def facts(self) -> Answer:
        """Describe the tokenizer."""
        tokenizer = self.tokenizer
        return {
            "name": self.name, "vocab_size": tokenizer.vocab_size, "pattern": tokenizer.pattern,
            "special_tokens": tokenizer.special_tokens, "has_bytes": self.vocabulary is not None,
        }

    def load_in_python(self) -> str:
        """Return Python code that loads the tokenizer."""
        return f"from bpe import load_tokenizer\n\ntokenizer = load_tokenizer({self.location!r})\n"


class ViewedDataset:
    """A dataset, its name on the page, and its tokenizer; None for a reason, `no_tokenizer`.

    Attributes:
        scanned: The pass over the dataset. Special tokens count neither as tokens nor as bytes of a
            document.
        scanning: Makes the pass, and lists documents with copies.
    """

    def __init__(
        self, name: str, file: TokenFile, tokenizer: ViewedTokenizer | None, no_tokenizer: str = "",
        is_beside: bool = True,
    ) -> None:
        self.name, self.file, self.tokenizer = name, file, tokenizer
        self.no_tokenizer, self._is_beside = no_tokenizer, is_beside
        sizes = None
        if tokenizer is not None:
            sizes = np.zeros(max(tokenizer.tokenizer.vocab_size, file.vocab_size), np.int64)
            sizes[: len(tokenizer.lengths)] = tokenizer.lengths
            sizes[[*tokenizer.special_ids]] = -1
        self.scanned = Scan(file, sizes, repeats=True)
        self.scanning = Task(lambda: _list_copies(self.scanned.run()))

    def progress(self) -> Answer:
        """Describe how far the pass is, which begins on another thread when this is first asked."""
        is_over, error = self.scanning.is_done, self.scanning.error
        if not is_over:
            start_thread(self.scanning.run)
        return {
            "done": self.scanned.done, "total": self.file.n_tokens, "over": is_over,
            "error": "" if error is None else f"{type(error).__name__}: {error}",
        }

    def facts(self) -> Answer:
        """Describe the dataset from its manifest."""
        file, manifest = self.file, self.file.manifest
        return {
            "name": self.name, "tokens": file.n_tokens, "documents": file.n_documents,
            "bytes": manifest.n_bytes, "dtype": file.dtype.name, "shards": len(manifest.shards),
            "tokenizer": self.tokenizer and self.tokenizer.name, "no_tokenizer": self.no_tokenizer,
        }

    def open_in_python(self) -> str:
        """Return Python code that opens the dataset."""
        given = ""
        if self.tokenizer is not None and not self._is_beside:
            given = f", tokenizer={self.tokenizer.location!r}"
        path = str(self.file.absolute_path)
        return f"from preprocess import open_tokens\n\nfile = open_tokens({path!r}{given})\n"


def _list_copies(scanned: Scan) -> list[Answer]:
    """List the documents that have most copies, of each the number and the first three."""
    copies, firsts = scanned.copies
    numbers, counts = np.unique(firsts, return_counts=True)
    kept = np.argsort(-counts, kind="stable")[:KEPT]
    lengths = spans_of_documents(scanned.file, numbers[kept])[1]
    return [
        {"document": number, "tokens": length, "copies": count,
         "others": np.sort(copies[firsts == number])[:3].tolist()}
        for number, length, count in np.stack([numbers[kept], lengths, counts[kept]], 1).tolist()
    ]  # fmt: skip


class Library:
    """Datasets and tokenizers by the names that the page has for them."""

    def __init__(self) -> None:
        self.datasets: dict[str, ViewedDataset] = {}
        self.tokenizers: dict[str, ViewedTokenizer] = {}

    def add(self, location: str) -> None:
        """Open the datasets and the tokenizer at a path, URL or name of a tokenizer.

        Raises:
            TokenmillError: There are none, or they cannot be read.
        """
        beside = Path(location, TOKENIZER_FILE)
        if not is_dataset(location):
            self._add_tokenizer(location)
        elif beside.exists() and not names_of_datasets(open_files(location)):
            self._add_tokenizer(str(beside))
        else:
            for found in find_datasets(location):
                self._add_dataset(found)

    def _add_dataset(self, location: str) -> None:
        file = open_tokens(location)
        path, _ = file.tokenizer_file()
        viewed = None
        why = "there is no tokenizer.json beside it, and none was given that it was built with"
        try:
            if path is not None:
                found = self._add_tokenizer(str(path))
                check_tokenizer(file.path, file.manifest, found.tokenizer)
                viewed = found
        except TokenmillError as error:
            why = str(error)
        is_beside = viewed is not None
        if viewed is None:
            expected = file.manifest.tokenizer_fingerprint
            others = self.tokenizers.values()
            viewed = next((x for x in others if x.tokenizer.has_fingerprint(expected)), None)
        stem = os.path.splitext(url_name(location) if is_url(location) else location)[0]
        name = _unused(stem, 1, self.datasets)
        self.datasets[name] = ViewedDataset(name, file, viewed, "" if viewed else why, is_beside)

    def _add_tokenizer(self, location: str) -> ViewedTokenizer:
        from bpe import load_tokenizer

        known = {each.location: each for each in self.tokenizers.values()}
        location = os.path.abspath(location) if os.path.exists(location) else location
        if location not in known:
            loaded = load_tokenizer(read_tokenizer(location))
            name = _unused(location, 1 + location.endswith(TOKENIZER_FILE), self.tokenizers)
            self.tokenizers[name] = known[location] = ViewedTokenizer(name, location, loaded)
        return known[location]

    def dataset(self, name: str) -> ViewedDataset:
        """Return a dataset by its name; raise ViewError if there is none."""
        return _find(name, self.datasets, "dataset")

    def tokenizer(self, name: str) -> ViewedTokenizer:
        """Return a tokenizer by its name; raise ViewError if there is none."""
        return _find(name, self.tokenizers, "tokenizer")


def contents(library: Library) -> Answer:
    """Describe everything that is shown."""
    return {
        "datasets": [each.facts() for each in library.datasets.values()],
        "tokenizers": [each.facts() for each in library.tokenizers.values()],
    }


def is_dataset(location: str) -> bool:
    """Return whether there is a dataset at a location, and no tokenizer."""
    place = Path(url_name(location) if is_url(location) else location)
    if is_url(location):
        return place.name != TOKENIZER_FILE
    is_other = place.is_dir() or place.suffix in (".bin", ".yaml", ".yml", ".txt")
    return is_other or is_manifest(place)


def _unused(location: str, n_parts: int, used: Mapping[str, Any]) -> str:
    """Return the end of a path or URL that is no name yet, of at least so many parts."""
    parts = location.split("/")
    names = ("/".join(parts[-n:]) for n in range(n_parts, len(parts)))
    return next((name for name in names if name not in used), location)


def _find(name: str, among: Mapping[str, _Shown], what: str) -> _Shown:
    if name not in among:
        raise ViewError(f"there is no {what} {name!r}; there are {', '.join(among) or 'none'}")
    return among[name]
