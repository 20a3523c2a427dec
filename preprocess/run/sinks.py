"""Destinations of encoded documents: the protocol of a sink, and token files.

`preprocess.run.encode_pass` depends only on the protocol. The journal keeps the states of a sink,
from which the sink is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from preprocess.dataset.columns import Values
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.writer import TokenFileWriter, WriterState, read_saved_manifest
from preprocess.run.journal import journal_errors
from preprocess.storage import Storage, Stream


class Sink(Protocol):
    """Destination of the documents of one output, in order; methods may raise OutputError."""

    @property
    def streams(self) -> Sequence[Stream]:
        """Streams to sync before a journal records `state`."""

    def append(self, ids: Values, document_ends: Values, **columns: Values) -> None:
        """Append documents, as `TokenFileWriter.append`."""

    def state(self, whole: bool = False) -> Any:
        """Return the state that is new since the previous call, or all: a struct or JSON."""

    def finish(self, *_: Any, **fields: Any) -> Any:
        """Sync and complete the output; `fields` are fields of `Manifest`."""

    def close(self) -> None:
        """Close open files; may be called more than once."""


class Sinks(Protocol):
    """Factory of sinks of one kind."""

    def open(self, name: str, states: Sequence[Any]) -> Sink:
        """Open the sink NAME, or resume it from its states, decoded from JSON.

        Raises:
            OutputError: It cannot be opened.
            DamagedStateError: Its files do not match the states.
        """

    def result_of(self, name: str) -> Any:
        """Return the result of `Sink.finish` of an earlier run."""


class TokenFiles(Struct, frozen=True):
    """Token files as sinks; the attributes are arguments of `TokenFileWriter`."""

    storage: Storage
    vocab_size: int
    shard_tokens: int | None = None
    split_documents: bool = False
    has_mask: bool = False

    def open(self, name: str, states: Sequence[Any]) -> TokenFileWriter:
        """Open or resume the token file NAME."""
        with journal_errors():
            states = msgspec.convert(states, tuple[WriterState, ...])
        return TokenFileWriter(
            self.storage, name, vocab_size=self.vocab_size, states=states,
            shard_tokens=self.shard_tokens, split_documents=self.split_documents,
            has_mask=self.has_mask,
        )

    def result_of(self, name: str) -> Manifest:
        """Return the manifest of a token file that an earlier run finished."""
        return read_saved_manifest(self.storage, name)
