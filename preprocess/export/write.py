"""Write the files of an export, one after another, resumable inside each.

The journal records, about once a second, how much of the open file is durable, and its digest.
Files get their final names when all are complete, the manifest last: `export.json` in the directory
of the files, or NAME.export.json beside files with a name of their own, so that one directory may
have several exports.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash
from msgspec import Struct

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.manifest import Count, DerivedManifest
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.export.formats import FORMATS, ExportError, OutputFile, Source
from preprocess.locations import relative_location
from preprocess.options import ExportSettings
from preprocess.report.progress import Progress, Stage, progress_of
from preprocess.run.journal import JournalError
from preprocess.run.outputs import (
    check_no_others,
    check_sizes,
    find_token_files,
    read_object,
)
from preprocess.run.record import Record
from preprocess.run.run import Run
from preprocess.run_ahead import run_ahead
from preprocess.settings import SettingsError, takes
from preprocess.storage import Files, OutputError, digest_of_file, open_storage

FORMAT = "tokenmill-export"


class FileFacts(Struct, frozen=True):
    """One file of an export.

    Attributes:
        name: File name.
        bytes: Size of the file.
        digest: Hexadecimal xxh3_128 of its bytes.
    """

    name: str
    bytes: Count
    digest: str


class ExportManifest(DerivedManifest, frozen=True, kw_only=True):
    """Content of the manifest of an export.

    Attributes:
        tokens, documents: Totals of the dataset.
        dtype: Type of its ids; formats without it have another one.
        vocab_size: Exclusive upper bound of ids.
        end_of_text_id: Id after each document.
        begin_of_text_id: Id before each document; None: none.
        tokenizer_fingerprint: SHA-256 of the tokenizer.
        files: The files, in the order in which they were written.
    """

    about, error = (FORMAT, 1), ExportError
    again = "export again (--overwrite), or choose another place"

    tokens: Count
    documents: Count
    dtype: str
    vocab_size: Count
    end_of_text_id: Count
    begin_of_text_id: Count | None
    tokenizer_fingerprint: str
    files: tuple[FileFacts, ...]

    def check(self) -> None:
        """Raise ValueError for a name that is of no file in the directory."""
        for each in self.files:
            if os.path.basename(each.name) != each.name:
                raise ValueError(f"{each.name!r} is no name of a file in its directory")


def read_manifest(files: Files, name: str) -> ExportManifest:
    """Read the manifest of an export, which exists.

    Raises:
        ExportError: It is damaged, of a newer format, or of another program.
    """
    return ExportManifest.from_json(files.get(name) or b"", files.where(name))


class ExportResult(NamedTuple):
    """The export of one token file.

    Attributes:
        path: Directory of the files.
        manifest: What was written.
        is_new: False if it was there already.
        seconds: Time that writing took.
        lines: The result in words, and what the format does not carry.
    """

    path: Path
    manifest: ExportManifest
    is_new: bool
    seconds: float
    lines: list[str]

    def __repr__(self) -> str:
        return f"ExportResult({str(self.path)!r}, {len(self.manifest.files):,} files)"


@takes(ExportSettings)
def export_tokens(settings: ExportSettings) -> list[ExportResult]:
    """Export a dataset, or all datasets in a directory, to files of another program.

    Options: docs/options.md or `tokenmill export --help`; `progress=False` shows none.

    Raises:
        TokenFileError: There is no dataset, or it is damaged.
        ExportError: The format cannot have the dataset.
        OutputError: The files cannot be written, or others are there.
        SettingsError: Options are invalid.
    """
    progress = progress_of(settings.progress)
    paths = find_token_files(settings.path)
    if settings.name and len(paths) > 1:
        names = ", ".join(Path(each).stem for each in paths)
        raise SettingsError(
            f"--name is for one dataset, and {settings.path} has {names}; give one of them, such as"
            f" {os.path.splitext(paths[0])[0]}.bin"
        )
    if settings.shard_tokens is not None and FORMATS[settings.to].shard_tokens is None:
        with_shards = [key for key, each in FORMATS.items() if each.shard_tokens is not None]
        raise SettingsError(
            f"--shard-tokens is for {', '.join(with_shards)}; files of {settings.to} are"
            " not divided, so leave it out"
        )
    exports = [_Export(open_tokens(x), settings, settings.name or Path(x).stem) for x in paths]
    return [each.write(progress) for each in exports]


class _Written(Struct):
    """So much of a file is durable."""

    pieces: int = 0
    bytes: int = 0
    digest: str = xxhash.xxh3_128_hexdigest(b"")  # xxh3_128 of these bytes
    is_complete: bool = False


class _Export:
    """The export of one token file."""

    def __init__(self, file: TokenFile, settings: ExportSettings, name: str) -> None:
        self._file, self._settings, self._name = file, settings, name
        self._format = FORMATS[settings.to]
        self._shard_tokens = settings.shard_tokens or self._format.shard_tokens or 0
        out, in_directory = Path(settings.out), self._format.in_directory
        self._directory = out / name if in_directory else out
        self._run = "export" if in_directory else f"{name}.export"
        self._manifest_file = f"{self._run}.json"
        self._of_settings = {
            "to": settings.to, "name": name, "shard_tokens": self._shard_tokens or None,
        }
        self._final = open_storage(self._directory).final

    def write(self, progress: Progress) -> ExportResult:
        """Write the export, unless it is there."""
        started, is_new = time.perf_counter(), True
        made_from = {"dataset_digest": self._file.manifest.digest, **self._of_settings}
        with Run(
            str(self._directory), self._run, Record("export", made_from, {}, None),
            self._settings.overwrite, hopeless=(SettingsError, ExportError, TokenFileError),
        ) as run:
            if not run.is_complete:
                is_new = run.resumed or not self._is_there()
                if is_new:
                    self._make(run, progress)
        manifest = read_manifest(self._final, self._manifest_file)
        seconds = time.perf_counter() - started
        lines = self._lines(manifest, f"in {seconds:.1f} s" if is_new else "up to date")
        return ExportResult(self._directory, manifest, is_new, seconds, lines)

    def _is_there(self) -> bool:
        """Return True if the export exists; raise OutputError if another one does."""
        final, own = self._final, self._of_settings
        if final.size(self._manifest_file) is None or self._settings.overwrite:
            return False
        found, other = read_manifest(final, self._manifest_file), ""
        if found.settings != own:
            theirs = {key: found.settings.get(key) for key in own}
            changed = ", ".join(f"{key} {each}" for key, each in theirs.items() if each != own[key])
            other = f"with other settings ({changed})"
        elif found.dataset_digest != self._file.manifest.digest:
            other = "of another dataset, or of what this one was before"
        if other:
            raise OutputError(
                f"{final.where(self._manifest_file)}: is an export {other}; choose another"
                " directory, or replace it (--overwrite)"
            )
        sizes = {each.name: each.bytes for each in found.files}
        check_sizes(final, sizes, "export again (--overwrite)")
        return True

    def _make(self, run: Run, progress: Progress) -> None:
        source = Source(self._file, self._name)
        files = self._format.plan_files(source, self._shard_tokens)
        before = self._files_before({file.name for file in files})
        run.begin()
        at = [run.journal.value(f"file {i}", _Written) or _Written() for i in range(len(files))]
        total, done = sum(file.n_bytes for file in files), sum(each.bytes for each in at)
        with progress.stage(f"exporting {self._name}", total, "B", done) as stage:
            for number, file in enumerate(files):
                if not at[number].is_complete or run.storage.size(file.name) != file.n_bytes:
                    at[number] = _write(run, f"file {number}", file, at[number], stage)
        facts = [FileFacts(x.name, y.bytes, y.digest) for x, y in zip(files, at, strict=True)]
        run.add(*(file.name for file in files))
        run.put(self._manifest_file, self._manifest_of(facts).to_json().encode(), last=True)
        run.gone = before
        run.publish()

    def _manifest_of(self, facts: list[FileFacts]) -> ExportManifest:
        file, manifest = self._file, self._file.manifest
        # A relative path, so that both may be moved together.
        path = f"{os.path.splitext(file.absolute_path)[0]}.json"
        return ExportManifest(
            dataset=relative_location(path, str(self._directory)),
            dataset_digest=manifest.digest, settings=self._of_settings,
            tokens=file.n_tokens, documents=file.n_documents, dtype=manifest.dtype,
            vocab_size=file.vocab_size, end_of_text_id=manifest.end_of_text_id,
            begin_of_text_id=manifest.begin_of_text_id,
            tokenizer_fingerprint=manifest.tokenizer_fingerprint, files=tuple(facts),
        )

    def _files_before(self, names: set[str]) -> set[str]:
        """Return the names of the files of the export that is replaced; set(): there is none.

        Raises:
            OutputError: Files of other programs, or a dataset, are in the way.
        """
        final, before = self._final, set[str]()
        if read_object(final, self._manifest_file, FORMAT) is not None:
            before = {self._manifest_file, *names}  # if it is damaged
            with suppress(ExportError):
                found = read_manifest(final, self._manifest_file).files
                before = {self._manifest_file, *(each.name for each in found)}
        others = {*names, self._manifest_file} - before
        check_no_others(final, others, "tokenmill export", "(--out)")
        return before

    def _lines(self, manifest: ExportManifest, state: str) -> list[str]:
        files, to = manifest.files, self._settings.to
        lines = [
            f"{Path(self._settings.out, self._name)}: {state} ({to}, {manifest.tokens:,} tokens,"
            f" {manifest.documents:,} documents, {len(files):,} file{'s' * (len(files) > 1)},"
            f" {sum(each.bytes for each in files):,} bytes)"
        ]
        if not self._format.has_documents:
            lines.append(
                f"{to} has no document boundaries: only the end-of-text ids"
                f" ({manifest.end_of_text_id}) tell where documents end"
            )
        if self._file.has_mask and not self._format.has_mask:
            lines.append(f"{to} has no loss mask, so a trainer would train on all tokens")
        return lines + [self._format.note] * bool(self._format.note)


def _write(run: Run, key: str, file: OutputFile, at: _Written, stage: Stage) -> _Written:
    """Write a file from where its last checkpoint was, which is in the journal at `key`."""
    journal, storage = run.journal, run.storage
    digest = digest_of_file(storage, file.name, at.bytes)
    if digest.hexdigest() != at.digest:
        raise JournalError(
            f"{storage.where(file.name)}: was changed since the interruption, for it does not have"
            " the digest in the journal; start over (--overwrite)"
        )
    stream = storage.stream(file.name, at.bytes)
    try:
        with closing(run_ahead(file.pieces(at.pieces), 1)) as pieces:
            for number, piece in enumerate(pieces, at.pieces + 1):
                data = memoryview(piece if isinstance(piece, bytes) else piece.data).cast("B")
                stream.append(data)
                digest.update(data)
                stage.advance(len(data))
                at = _Written(number, stream.n_bytes, digest.hexdigest())
                if journal.due():
                    journal.submit(key, at, [stream], stage=stage)
        assert stream.n_bytes == file.n_bytes
        at = msgspec.structs.replace(at, is_complete=True)
        journal.save(key, at, [stream], stage=stage)
        return at
    finally:
        journal.rest()  # its thread may still sync the stream
        stream.close()
