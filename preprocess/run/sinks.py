"""Where encoded documents go: the protocol of a sink, and token files.

`preprocess.run.encode_pass` knows only this protocol. A sink is resumed from its states, which the
journal keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from preprocess.dataset.columns import Values
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.writer import TokenFileWriter, WriterState, saved_manifest
from preprocess.run.journal import journal_errors
from preprocess.storage import Storage, Stream


class Sink(Protocol):
    """Takes the documents of one output, in order; each method may raise OutputError."""

    @property
    def streams(self) -> Sequence[Stream]:
        """Streams to sync before a journal records `state`."""

    def append(self, ids: Values, document_ends: Values, **columns: Values) -> None:
        """Append documents, as `TokenFileWriter.append`."""

    def state(self) -> Any:
        """Return the progress since the previous call: a msgspec struct or JSON."""

    def finish(self, *_: Any, **fields: Any) -> Any:
        """Sync everything; `fields` are those of `Manifest`, as in `TokenFileWriter.finish`."""

    def close(self) -> None:
        """Close what is open; may be called more than once."""


class Sinks(Protocol):
    """Opens sinks of one kind; raises OutputError, or DamagedStateError for a changed sink."""

    def open(self, name: str, states: Sequence[Any]) -> Sink:
        """Open the sink NAME, or resume it after all of its states, converted from JSON.

        Raises:
            OutputError: That failed.
            DamagedStateError: The sink is not what the states describe.
        """

    def finished(self, name: str) -> Any:
        """Return what `Sink.finish` returned in an earlier run."""


class TokenFiles(Struct, frozen=True):
    """Token files in a storage; the attributes are arguments of `TokenFileWriter`."""

    storage: Storage
    vocab_size: int
    shard_tokens: int | None = None
    split_documents: bool = False

    def open(self, name: str, states: Sequence[Any]) -> TokenFileWriter:
        """Open or resume the token file NAME."""
        with journal_errors():
            states = msgspec.convert(states, tuple[WriterState, ...])
        return TokenFileWriter(
            self.storage, name, vocab_size=self.vocab_size, states=states,
            shard_tokens=self.shard_tokens, split_documents=self.split_documents,
        )

    def finished(self, name: str) -> Manifest:
        """Return the manifest of a token file that an earlier run finished."""
        return saved_manifest(self.storage, name)
