"""Write the files of an export, one after another, resumable inside each.

The journal records, about once a second, how much of the open file is durable, and its digest.
Files get their final names when all are complete, the manifest last.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import xxhash
from msgspec import Struct

from bpe.files.locations import relative_location
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.export.formats import FORMATS
from preprocess.export.manifest import FORMAT, ExportManifest, FileFacts, read_manifest
from preprocess.export.source import ExportError, OutputFile, Source
from preprocess.options import ExportSettings
from preprocess.report.progress import Progress, Stage, progress_of
from preprocess.run.finished import find_token_files, read_object
from preprocess.run.journal import JournalError
from preprocess.run.record import Record
from preprocess.run.run import Run
from preprocess.run_ahead import run_ahead
from preprocess.settings import SettingsError, takes
from preprocess.storage import OutputError, open_storage

_READ_BYTES = 1 << 22  # of a file that are digested again at a time


class Written(Struct):
    """So much of a file is durable."""

    pieces: int
    bytes: int
    digest: str  # xxh3_128 of these bytes
    is_complete: bool


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
            f"name is for one dataset, and {settings.path} has {names}; give one of them, such as"
            f" {os.path.splitext(paths[0])[0]}.bin"
        )
    if settings.shard_tokens is not None and FORMATS[settings.to].shard_tokens is None:
        with_shards = [key for key, each in FORMATS.items() if each.shard_tokens is not None]
        raise SettingsError(
            f"shard_tokens is for {', '.join(with_shards)}; files of {settings.to} are not divided,"
            " so leave it out"
        )
    runs = [_Run(open_tokens(x), settings, settings.name or Path(x).stem) for x in paths]
    return [run.write(progress) for run in runs]


class _Run:
    """Exports one token file."""

    def __init__(self, file: TokenFile, settings: ExportSettings, name: str) -> None:
        self._file, self._settings, self._name = file, settings, name
        self._format = FORMATS[settings.to]
        self._shard_tokens = settings.shard_tokens or self._format.shard_tokens or 0
        out, in_directory = Path(settings.out), self._format.in_directory
        self._directory = out / name if in_directory else out
        self._manifest_file = "export.json" if in_directory else f"{name}.export.json"
        self._of_settings = {
            "to": settings.to, "name": name, "shard_tokens": self._shard_tokens or None,
        }
        self._run = "export" if in_directory else f"{name}.export"
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
        final, overwrite = self._final, self._settings.overwrite
        if final.size(self._manifest_file) is None or overwrite:
            return False
        found = read_manifest(final, self._manifest_file)
        where = final.where(self._manifest_file)
        if found.settings != self._of_settings:
            own = self._of_settings
            theirs = [f"{key} {found.settings.get(key)}" for key in own
                      if found.settings.get(key) != own[key]]
            other = f"with other settings ({', '.join(theirs)})"
        elif found.dataset_digest != self._file.manifest.digest:
            other = "of another dataset, or of what this one was before"
        else:
            for each in found.files:
                if (size := final.size(each.name)) != each.bytes:
                    what = "missing" if size is None else f"of {size:,} bytes"
                    raise OutputError(
                        f"{final.where(each.name)}: is {what}, and the export has it with"
                        f" {each.bytes:,} bytes; export again (--overwrite)"
                    )
            return True
        raise OutputError(
            f"{where}: is an export {other}; choose another directory, or replace it (--overwrite)"
        )

    def _make(self, run: Run, progress: Progress) -> None:
        source = Source(self._file, self._name)
        files = self._format.exporter().plan_files(source, self._shard_tokens)
        names = [each.name for each in files]
        before = self._files_before(names)
        self._check_free({*names, self._manifest_file}, before)
        run.begin()
        found = {number: run.journal.value(_key(number), Written) for number in range(len(files))}
        reached = {number: each for number, each in found.items() if each is not None}
        done = sum(each.bytes for each in reached.values())
        total = sum(each.n_bytes for each in files)
        with progress.stage(f"exporting {self._name}", total, "B", done) as stage:
            for number, file in enumerate(files):
                at = reached.get(number)
                size = run.storage.size(file.name)
                if at is None or not at.is_complete or size != at.bytes:
                    reached[number] = self._write(run, number, file, at, stage)
        facts = [
            FileFacts(file.name, reached[number].bytes, reached[number].digest)
            for number, file in enumerate(files)
        ]
        run.add(*names)
        run.put(self._manifest_file, self._manifest_of(facts).to_json().encode(), last=True)
        run.gone = before
        run.publish()

    def _write(
        self, run: Run, number: int, file: OutputFile, at: Written | None, stage: Stage
    ) -> Written:
        """Write a file from where its last checkpoint was."""
        journal, storage, digest = run.journal, run.storage, _digest_again(run, file, at)
        if at is not None and digest.hexdigest() != at.digest:
            if not self._settings.overwrite:
                raise JournalError(
                    f"{storage.where(file.name)}: was changed since the interruption, for it"
                    " does not have the digest in the journal; start over (--overwrite)"
                )
            at, digest = None, xxhash.xxh3_128()
        n_pieces = at.pieces if at else 0
        stream = storage.stream(file.name, at.bytes if at else 0)
        try:
            with closing(run_ahead(file.pieces(n_pieces), 1)) as pieces:
                for piece in pieces:
                    data = memoryview(piece if isinstance(piece, bytes) else piece.data).cast("B")
                    stream.append(data)
                    digest.update(data)
                    n_pieces += 1
                    stage.advance(len(data))
                    if journal.due():
                        reached = Written(n_pieces, stream.n_bytes, digest.hexdigest(), False)
                        journal.submit(_key(number), reached, [stream], stage=stage)
            assert stream.n_bytes == file.n_bytes
            reached = Written(n_pieces, stream.n_bytes, digest.hexdigest(), True)
            journal.save(_key(number), reached, [stream], stage=stage)
            return reached
        finally:
            journal.rest()  # its thread may still sync the stream
            stream.close()

    def _manifest_of(self, facts: list[FileFacts]) -> ExportManifest:
        file, manifest = self._file, self._file.manifest
        # A relative path, so that both may be moved together.
        path = f"{os.path.splitext(file.absolute_path)[0]}.json"
        dataset = relative_location(path, str(self._directory))
        return ExportManifest(
            dataset=dataset, dataset_digest=manifest.digest, settings=self._of_settings,
            tokens=file.n_tokens, documents=file.n_documents, dtype=manifest.dtype,
            vocab_size=file.vocab_size, end_of_text_id=manifest.end_of_text_id,
            begin_of_text_id=manifest.begin_of_text_id,
            tokenizer_fingerprint=manifest.tokenizer_fingerprint, files=tuple(facts),
        )

    def _files_before(self, names: list[str]) -> set[str]:
        """Return the names of the files of the export that is replaced; set(): there is none."""
        final, manifest_file = self._final, self._manifest_file
        if read_object(final, manifest_file, FORMAT) is None:
            return set()
        with suppress(ExportError):  # damaged: only the files of this export
            names = [each.name for each in read_manifest(final, manifest_file).files]
        return {manifest_file, *names}

    def _check_free(self, names: set[str], before: set[str]) -> None:
        """Raise OutputError if files of other programs, or a dataset, are in the way."""
        final = self._final
        if there := {*final.names()} & names - before:
            raise OutputError(
                f"{final.where(min(there))}: exists and was not written by tokenmill export, so it"
                " is left alone; move it away or choose another directory (--out)"
            )

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


def _key(number: int) -> str:
    """Return the key of a file in the journal."""
    return f"file {number}"


def _digest_again(run: Run, file: OutputFile, at: Written | None) -> xxhash.xxh3_128:
    """Return the digest of what a file has up to a checkpoint."""
    digest, n_bytes = xxhash.xxh3_128(), at.bytes if at else 0
    for start in range(0, n_bytes, _READ_BYTES):
        stop = min(start + _READ_BYTES, n_bytes)
        digest.update(run.storage.read(file.name, start, stop))
    return digest
