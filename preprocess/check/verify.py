"""Check token files against their manifests, and locate damaged blocks.

A file is sound if all blocks have their digests, all ids are in the vocabulary, and all documents
end on an end-of-text id; every byte is read, in directories and at URLs alike. Local datasets are
compared with their tokenizer and sources, too. Nothing is changed without `repair`, which writes
only proven content (`preprocess.check.rebuild`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import (
    CorpusError,
    EncodingError,
    TokenizerFileError,
    TokenmillError,
    spelled,
)
from bpe.files.locations import is_url, shown_url
from bpe.parallel import run_in_order
from preprocess.check import rebuild, rows
from preprocess.check.rows import Finding as Finding
from preprocess.check.rows import reason_of
from preprocess.dataset import columns as table
from preprocess.dataset.columns import IDS, MASK, TokenFileError, manifest_name
from preprocess.dataset.manifest import SELECTED, DataFile, Manifest, manifest_is_as_written
from preprocess.dataset.reader import TokenFile, open_tokens, read_bounds
from preprocess.documents.chat_tokens import gives_text_back
from preprocess.locations import how_to_repair, url_name
from preprocess.options import BuildSettings, VerifySettings
from preprocess.report.progress import Progress, Stage, progress_of
from preprocess.report.summary import listed
from preprocess.run.outputs import TOKENIZER_FILE, find_token_files, manifests_in, names_of_datasets
from preprocess.settings import SettingsError, TokenizerSource, takes
from preprocess.storage import Files, OutputError, Storage, open_files, open_repair
from preprocess.storage.files import LocalFiles, directory_of

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DOCUMENTS_AT_A_TIME = 1 << 20
_REQUESTS_AT_ONCE = 8
# Documents that are decoded and encoded again, and the maximum of their tokens in all.
_SAMPLE_DOCUMENTS = 16
_SAMPLE_TOKENS = 1 << 20
_SHOWN = 5


@takes(VerifySettings)
def verify(settings: VerifySettings) -> list[Finding]:
    """Check one token file, or all token files or rows in a directory, against their manifests.

    With `deep`, all sources are encoded, or all rows made, again and compared; with `repair`,
    damaged files are rebuilt from the sources, and those of rows from the dataset. Options:
    docs/options.md or `tokenmill verify --help`.

    Raises:
        TokenFileError: There are no token files to check.
        SettingsError: `deep` or `repair` of a URL.
        RemoteError: The server of a URL does not answer or refuses the request.
        TokenmillError: The given tokenizer cannot be loaded.
    """
    given, progress = settings.path, progress_of(settings.progress)
    if is_url(given) and (settings.deep or settings.repair):
        what = "--deep" if settings.deep else "--repair"
        raise SettingsError(
            f"{what} is for files on this machine, and {shown_url(given)} is a URL; copy the files,"
            " or leave it out"
        )
    if is_url(given) or not os.path.isdir(given):
        return _verify_place(given, settings, progress)
    findings, places = list[Finding](), rows.find_places(Path(given))
    for place in places:
        try:
            if place != Path(given) and not _is_here(place):
                what = "its dataset " * place.exists()
                text = f"{what}is not here, so it is not checked, though config.json has it"
                findings.append(Finding(place, True, text, checked=False))
            else:
                findings += _verify_place(str(place), settings, progress)
        except TokenFileError as error:
            if len(places) == 1:
                raise
            findings.append(Finding(place, False, reason_of(error, place)))
    return findings


def _is_here(place: Path) -> bool:
    """Return False for a directory that is missing, or has a tokenizer alone (`keep_tokens`)."""
    files = open_files(place)
    is_removed = (
        files.size(TOKENIZER_FILE) is not None and files.size("stats.json") is None
        and not names_of_datasets(files) and not rows.find_rows(place)
    )
    return place.exists() and not is_removed


def _verify_place(place: str, settings: VerifySettings, progress: Progress) -> list[Finding]:
    """Check a token file, or all token files or rows in a directory."""
    is_directory, directory = os.path.isdir(place), place
    shown = shown_url(place) if is_url(place) else place
    if is_directory or (is_url(place) and os.path.splitext(shown)[1] not in (".bin", ".json")):
        files = open_files(place)
        names = names_of_datasets(files)
    else:
        if is_url(place) or not os.path.exists(f"{os.path.splitext(place)[0]}.json"):
            find_token_files(place)  # raises if there is none
        split = (directory_of(place), url_name(place)) if is_url(place) else os.path.split(place)
        directory = split[0] or "."
        files, names = open_files(directory), [os.path.splitext(split[1])[0]]
    if settings.repair:
        with open_repair(Path(directory)):
            pass  # it removes the work files of a killed repair
    checks = [_Dataset(files, name, settings, progress) for name in names]
    findings = [finding for each in checks for finding in each.check()]
    if is_directory:
        # JSON or Parquet beside a dataset may be text.
        found = [each for each in rows.find_rows(Path(place)) if each != Path(place) or not names]
        findings += rows.verify(found, settings, progress)
    if not findings:
        find_token_files(place)  # raises
    return [each._replace(text=spelled(each.text)) for each in findings]


class _Dataset:
    """Checks one dataset: `check` returns what is found."""

    def __init__(
        self, files: Files, name: str, settings: VerifySettings, progress: Progress
    ) -> None:
        self._files, self._name, self._settings, self._progress = files, name, settings, progress
        self._manifest_file = manifest_name(name)
        where = files.where(self._manifest_file)
        self._is_local = not is_url(where)
        self._path = Path(where).with_suffix(".bin")  # of a local one
        self._manifest: Manifest | None = None
        self._has_digests = False  # the manifest is as it was written
        self._tokenizer: AnyTokenizer | None = None
        self._findings: list[Finding] = []
        self._buffer = np.empty(table.BLOCK_BYTES, np.uint8).data
        self._storage: Storage | None = None  # of a repair, which has locked the directory

    def _add(
        self, name: str, sound: bool, text: str, blocks: Iterable[int] = (),
        sources: Iterable[str] = (), checked: bool = True,
    ) -> None:
        where = self._files.where(name)
        path = Path(where) if self._is_local else where
        self._findings.append(Finding(path, sound, text, tuple(blocks), tuple(sources), checked))

    def check(self) -> list[Finding]:
        """Check the dataset, and repair it if that is asked for, while nobody else writes it."""
        try:
            if self._are_files():
                repair = self._settings.repair
                lock = open_repair(self._path.parent) if repair else nullcontext()
                with lock as self._storage:
                    self._check(self._check_manifest, self._repair_manifest)
                    if (found := self._manifest) is not None:
                        self._check(self._check_tokenizer, self._repair_tokenizer, found)
                        self._check(self._check_data, self._repair_data, found)
                if self._tokenizer is not None and all(each.sound for each in self._findings):
                    file = open_tokens(self._path)
                    self._add(Path(file.path).name, *_check_sample(file, self._tokenizer))
                    self._check_sources(file, self._tokenizer)
        except OSError as error:
            if not self._is_local:  # a server that does not answer is no damage
                raise
            # Other token files are checked all the same.
            text = f"cannot be read: {error.strerror or error}; check the disk and permissions"
            self._add(os.path.basename(error.filename or self._manifest_file), False, text)
        return self._findings

    def _own(self, manifest: Manifest) -> Path:
        """Return the path of its .bin; of one with shards, or joined, which has none: manifest."""
        return self._path.with_suffix(".json") if manifest.shards else self._path

    def _check(
        self, check: Callable[..., None], repair: Callable[..., Finding | None], *given: Manifest
    ) -> None:
        """Check a part, and if it is damaged, repair it in an empty storage and check it again.

        A repair gets the storage, too, and returns what was done, or None if it can do nothing.
        """
        before = len(self._findings)
        check(*given)
        is_sound = all(each.sound for each in self._findings[before:])
        if self._storage is not None and not is_sound:
            self._storage.clear()
            if (done := repair(*given, self._storage)) is not None:
                del self._findings[before:]
                check(*given)
                self._findings.append(done)

    def _are_files(self) -> bool:
        """Return False, and report it, if something is no regular file: a pipe would block."""
        kinds = "|".join(("json", *(column.name for column in table.COLUMNS)))
        own = re.compile(
            rf"{re.escape(self._name)}({table.SHARD})?\.({kinds})|{re.escape(TOKENIZER_FILE)}"
        )
        for name in filter(own.fullmatch, self._files.names() if self._is_local else ()):
            path = self._path.with_name(name)
            if path.exists() and not path.is_file():
                self._add(name, False, "expected a file, found something else; remove it")
        return not self._findings

    # --- the manifest ---

    def _check_manifest(self) -> None:
        where = self._files.where(self._manifest_file)
        try:
            content = self._files.get(self._manifest_file)
            if content is None and self._is_local:
                open_tokens(self._path)  # raises an error that describes the existing files
            if content is None:
                raise TokenFileError("there is no such manifest; check the URL")
            self._manifest = Manifest.from_json(content.decode("utf-8", "replace"), where)
        except TokenmillError as error:
            text = reason_of(error, where).removeprefix(f"{self._path}: ")
            return self._add(self._manifest_file, False, text)
        self._has_digests = manifest_is_as_written(content)
        text = (
            f"the manifest is as it was written: {self._manifest.n_tokens:,} tokens"
            f" ({self._manifest.dtype}), {self._manifest.n_documents:,} documents"
        )
        if not self._has_digests:
            text = (
                "the manifest was changed: its own digest differs; copy it there again, or rebuild"
                f" it ({how_to_repair(where)})"
            )
        return self._add(self._manifest_file, self._has_digests, text)

    def _repair_manifest(self, storage: Storage) -> Finding:
        """Rebuild the manifest, with the help of the tokenizer."""
        def again() -> None:
            try:
                tokenizer = _load_tokenizer_of(self._path, self._settings.tokenizer)
            except TokenmillError as error:
                what = f"{TOKENIZER_FILE} is damaged or missing, too"
                raise rebuild.RebuildError(what) from error
            rebuild.rebuild_manifest(self._path, tokenizer, storage, self._progress)

        path, first = self._path.with_suffix(".json"), f"remove {self._manifest_file} and "
        return _attempt(path, again, "has the digest in stats.json", first)

    # --- the tokenizer ---

    def _check_tokenizer(self, manifest: Manifest) -> None:
        """Compare a tokenizer with its fingerprint, and that of a local dataset with its bytes."""
        wanted, name = manifest.tokenizer_fingerprint, self._own(manifest).name
        given = self._settings.tokenizer
        if not wanted:
            text = "imported without a tokenizer, so there is no text to check or repair the ids by"
            return self._add(name if self._is_local else self._manifest_file, True, text)
        if not self._is_local:
            content = self._files.get(TOKENIZER_FILE)
            found = "" if content is None else hashlib.sha256(content).hexdigest()
            text = {
                "": "is not there, so it is not compared with the dataset",
                wanted: "has the fingerprint in the manifest",
            }.get(found, "is not the tokenizer of the dataset, or was changed")
            return self._add(TOKENIZER_FILE, found in ("", wanted), text)
        if self._is_elsewhere(manifest):
            text = "not checked with its tokenizer, which is not beside it; give it (--tokenizer)"
            return self._add(name, not self._settings.deep, text, checked=False)
        try:
            tokenizer = _load_tokenizer_of(self._path, given)
        except TokenmillError as error:
            if given is not None:
                raise  # says nothing of the dataset
            return self._add(name, False, reason_of(error, self._path))
        if tokenizer.fingerprint != wanted:
            what = given if given is None or isinstance(given, str) else "the given tokenizer"
            other = f"{what or TOKENIZER_FILE} is {tokenizer.fingerprint[:16]}..."
            text = f"built with the tokenizer {wanted[:16]}..., and {other}"
            return self._add(name, False, text)
        self._tokenizer = tokenizer
        text = "the tokenizer has the fingerprint in the manifest"
        if given is not None and not isinstance(given, str):  # it has no file
            return self._add(name, True, text)
        path = Path(given or self._path.with_name(TOKENIZER_FILE))
        path = path / TOKENIZER_FILE if path.is_dir() else path
        content, is_damaged = path.read_bytes() if path.exists() else b"", False
        if content and hashlib.sha256(content).hexdigest() != wanted:
            ours = tokenizer.to_json().encode()
            same_start = content.startswith(ours) or ours.startswith(content)
            is_damaged = len(content) == len(ours) or same_start
            text = "the tokenizer is the same, " + (
                "but bytes of its file were changed" if is_damaged else "saved by another program"
            )
        self._findings.append(Finding(path, not is_damaged, text))
        return None

    def _is_elsewhere(self, manifest: Manifest) -> bool:
        """Return True if no tokenizer is given, and that of the dataset was never beside it."""
        if self._settings.tokenizer is not None:
            return False
        with suppress(rebuild.RebuildError):
            if isinstance(rebuild.find_run(self._path)[0], BuildSettings):
                return False
        if self._files.size(TOKENIZER_FILE) is None:
            return True
        with suppress(TokenmillError):  # a damaged one is reported
            found = _load_tokenizer_of(self._path, None).fingerprint
            return found != manifest.tokenizer_fingerprint
        return False

    def _repair_tokenizer(self, manifest: Manifest, storage: Storage) -> Finding | None:
        """Rebuild tokenizer.json, unless another manifest in the directory needs it as it is."""
        is_given = self._settings.tokenizer is not None
        if is_given or not self._has_digests or self._is_elsewhere(manifest):
            return None
        found, path = None, self._path.with_name(TOKENIZER_FILE)
        with suppress(TokenmillError):
            found = _load_tokenizer_of(self._path, None)
        for name in manifests_in(self._files):
            with suppress(TokenmillError):
                other = Manifest.from_json(self._files.get(name) or b"", name)
                if found and other.tokenizer_fingerprint == found.fingerprint != (
                    manifest.tokenizer_fingerprint
                ):
                    return None
        given = self._path, manifest.tokenizer_fingerprint, found, storage, self._progress
        proof = "has the fingerprint in the manifest"
        return _attempt(path, lambda: rebuild.rebuild_tokenizer(*given), proof)

    # --- sizes, blocks and values ---

    def _check_data(self, manifest: Manifest) -> None:
        """Check sizes, blocks, values and document ends; sound shards share one finding."""
        before, files = len(self._findings), manifest.files(self._name)
        with self._progress.stage(
            f"verifying {self._name}", sum(file.n_bytes for file in files)
        ) as stage:
            for number, file in enumerate(files):
                first = number - number % len(manifest.columns)  # of the shard
                self._check_file(manifest, file, files[first + 1], stage)
        found = self._findings[before:]
        if manifest.shards and all(each.sound for each in found):
            del self._findings[before:]
            text = f"sizes, blocks and ids of {len(manifest.shards):,} shards are as written"
            self._add(self._manifest_file, True, text)
        sizes = {file.name: self._files.size(file.name) for file in files}
        if self._is_local and all(sizes[file.name] == file.n_bytes for file in files):
            wrong = _find_wrong_end(TokenFile(self._path, manifest))
            text = wrong or f"all {manifest.n_documents:,} documents end on end-of-text ids"
            name = self._manifest_file if manifest.shards else f"{self._name}.docs"
            self._add(name, not wrong, text)

    def _check_file(self, manifest: Manifest, file: DataFile, docs: DataFile, stage: Stage) -> None:
        """Check the size, blocks and values of a data file; `docs` are the ends of its shard."""
        if (size := self._files.size(file.name)) is None:
            return self._add(
                file.name, False, "missing, though its manifest is there",
                range(len(file.digests)),
            )
        column, wrong, n_ends, damaged = file.column, "", 0, list[int]()
        limit = column.limit_for(manifest.vocab_size)
        workers = 1 if self._is_local else _REQUESTS_AT_ONCE
        read, blocks = (lambda number: self._read_block(file, number)), range(len(file.digests))
        with closing(run_in_order(blocks, lambda: read, workers)) as results:
            for number, content in enumerate(results):
                if xxhash.xxh3_128_hexdigest(content) != file.digests[number]:
                    damaged.append(number)
                n = len(content) // file.dtype.itemsize
                values = np.frombuffer(content, file.dtype, n)
                if not wrong and limit is not None and n and int(values.max()) >= limit:
                    place = int((values >= limit).argmax())
                    where = f"{column.noun} of {column.per} {file.block(number).start + place:,}"
                    rule = f"and every {column.noun} is below {limit:,}"
                    wrong = f"{where} is {values[place]}, {rule}"
                n_ends += int(np.count_nonzero(values == manifest.end_of_text_id))
                stage.advance(len(file.block(number)) * file.dtype.itemsize)
        names, problems = self._sources_of(manifest, file, damaged), [wrong] if wrong else []
        if damaged:
            problems.insert(0, self._describe(manifest, file, damaged, docs))
        if size != file.n_bytes:
            text = f"{file.n_bytes:,} bytes are expected and {size:,} were found"
            problems.insert(0, f"{text}; it was damaged or replaced")
        # Chat templates may end turns with the end of text, too.
        is_odd = n_ends < docs.count if MASK in manifest.columns else n_ends != docs.count
        if column == IDS and is_odd and not problems:
            problems.append(
                f"{n_ends:,} end-of-text ids ({manifest.end_of_text_id}) for {docs.count:,}"
                " documents, expected one for each"
            )
        text = f"its size and all {len(blocks):,} blocks are as written"
        return self._add(file.name, not problems, "; ".join(problems) or text, damaged, names)

    def _read_block(self, file: DataFile, number: int) -> bytes | memoryview:
        """Read a block; of one that is unreadable, or was changed meanwhile, b"".

        A local one is valid until the next is read: memory that the processor has is faster.
        """
        start = number * table.BLOCK_BYTES
        with suppress(CorpusError, *[OSError] * self._is_local):
            stop = min(start + table.BLOCK_BYTES, file.n_bytes)
            if isinstance(self._files, LocalFiles):
                return self._files.read_into(self._buffer, file.name, start, stop)
            return self._files.read(file.name, start, stop)
        return b""

    def _sources_of(
        self, manifest: Manifest, file: DataFile, blocks: Iterable[int]
    ) -> dict[str, None]:
        """Return the names of the sources of some blocks, {} if they are not known."""
        names: dict[str, None] = {}
        for number in blocks:
            with suppress(rebuild.RebuildError):
                of = rebuild.find_sources_of(manifest, file, number)
                found = manifest.sources[of.start : of.stop]
                names |= dict.fromkeys(str(source.get("name")) for source in found)
        return names

    def _describe(
        self, manifest: Manifest, file: DataFile, damaged: list[int], docs: DataFile
    ) -> str:
        """Describe damaged blocks, with their documents and sources."""
        documents, places = self._documents_of(file, damaged, docs), list[str]()
        for place, number in enumerate(damaged):
            text = f"{number} (from byte {number * table.BLOCK_BYTES:,}"
            if documents is not None:
                text += ", documents {:,} to {:,}".format(*documents[place].tolist())
            names = [*self._sources_of(manifest, file, [number])][:_SHOWN]
            places.append(f"{text}{', of ' + ', '.join(names) if names else ''})")
        shown = listed(places, _SHOWN)
        return f"{len(places):,} of {len(file.digests):,} blocks are damaged: {shown}"

    def _documents_of(
        self, file: DataFile, blocks: list[int], docs: DataFile
    ) -> NDArray[np.uint64] | None:
        """Return the first and the last document in blocks: uint64[n, 2]; None: damaged ends."""
        ranges = [file.block(number) for number in blocks]
        bounds = np.array([(each.start, each.stop - 1) for each in ranges], np.uint64)
        before = np.uint64(file.before.n_documents)
        if file.column.per == "document":
            return bounds + before
        found = np.full_like(bounds, before)
        for number, digest in enumerate(docs.digests):
            content = self._read_block(docs, number)
            if xxhash.xxh3_128_hexdigest(content) != digest:
                return None
            ends = np.frombuffer(content, docs.dtype)
            found += np.searchsorted(ends, bounds, "right").astype(np.uint64)
        return found

    def _repair_data(self, manifest: Manifest, storage: Storage) -> Finding | None:
        """Rebuild the files with damaged blocks or wrong sizes."""
        if self._tokenizer is None:
            return None
        own = self._own(manifest)
        if not self._has_digests:
            text = f"not repaired, for {self._manifest_file}, which has the digests, is damaged"
            return Finding(own, False, text)
        sizes, files = self._files.sizes(), manifest.files(self._name)
        damaged = {Path(finding.path).name for finding in self._findings if finding.blocks}
        damaged |= {file.name for file in files if sizes.get(file.name) != file.n_bytes}
        try:
            origin = rebuild.Origin(manifest, self._path, self._tokenizer, self._progress)
            rebuilt = origin.rebuild(damaged, storage)
        except rebuild.RebuildError as error:
            return Finding(own, False, f"cannot be repaired: {error}")
        text = f"{len(rebuilt):,} of {len(damaged):,} damaged files were rebuilt from the sources"
        if lost := damaged.difference(rebuilt):
            names = listed(sorted(lost), _SHOWN)
            text += f"; {names}: the sources encode to other bytes now, their text has changed"
        return Finding(own, not lost, text)

    # --- sources ---

    def _check_sources(self, file: TokenFile, tokenizer: AnyTokenizer) -> None:
        """Check that the sources exist; with `deep`, that they encode to the ids in the file."""
        manifest, name, deep = file.manifest, Path(file.path).name, self._settings.deep
        if manifest.is_imported:
            names = ", ".join(str(source.get("name")) for source in manifest.sources)
            return self._add(name, True, f"its ids were imported from {names}, not made of text")
        if manifest.is_edited:
            return self._add(name, True, f"not compared with its sources: {rebuild.EDITED}")
        if any(source.get("name") == SELECTED for source in manifest.sources):
            text = f"not compared with its sources: {rebuild.SELECTED_BEFORE}"
            return self._add(name, True, text)
        try:
            origin = rebuild.Origin(manifest, self._path, tokenizer, self._progress)
            n = len(origin.sources)
            if not deep:
                return self._add(name, True, f"its {n:,} sources exist and have the same sizes")
            different = origin.find_difference(file)
        except (rebuild.RebuildError, OutputError) as error:
            # Not damage: sources are often deleted after a build.
            text = f"not compared with its sources: {error}"
            return self._add(name, not deep, text, checked=False)
        if different is None:
            return self._add(name, True, f"its {n:,} sources, encoded again, give the same ids")
        source, text = different
        return self._add(name, False, f"{source}, encoded again: {text}", (), [source])


def _load_tokenizer_of(path: Path, given: TokenizerSource | None) -> AnyTokenizer:
    """Load the given tokenizer, else tokenizer.json beside a token file; raise if missing."""
    from bpe import load_tokenizer

    beside = path.parent / TOKENIZER_FILE
    if given is None and not beside.exists():
        raise TokenizerFileError(
            f"{path}: no {TOKENIZER_FILE} in its directory; give the tokenizer that it was built"
            " with (--tokenizer)"
        )
    return load_tokenizer(beside if given is None else given)


def _attempt(path: Path, rebuild: Callable[[], None], proof: str, first: str = "") -> Finding:
    """Rebuild a file, and return what was done; raise OutputError if it cannot be written."""
    try:
        rebuild()
    except OutputError:
        raise
    except TokenmillError as error:
        return Finding(path, False, (
            f"cannot be repaired: {error}; restore a copy of it, or {first}rerun the command that"
            " wrote it (--overwrite)"
        ))
    return Finding(path, True, f"was rebuilt, and {proof}")


def _find_wrong_end(file: TokenFile) -> str:
    """Describe the first document with a wrong start or end; "" if there is none.

    Ends must ascend and follow end-of-text ids, and the last must be the number of tokens.
    """
    end_id, begin_id = file.manifest.end_of_text_id, file.manifest.begin_of_text_id
    n = file.n_documents
    for first in range(0, max(n, 1), _DOCUMENTS_AT_A_TIME):
        try:
            bounds = read_bounds(file, first, min(first + _DOCUMENTS_AT_A_TIME, n))
        except TokenFileError as error:
            return reason_of(error, file.path).partition("; the file is damaged")[0]
        wrong = file.tokens[bounds[1:] - 1] != end_id
        if wrong.any():
            place = int(wrong.argmax())
            where = f"document {first + place:,} ends at {bounds[place + 1]:,}"
            return f"{where} without the end-of-text id {end_id}"
        if begin_id is not None and (wrong := file.tokens[bounds[:-1]] != begin_id).any():
            where = f"document {first + int(wrong.argmax()):,}"
            return f"{where} does not begin with the begin-of-text id {begin_id}"
    return ""


def _check_sample(file: TokenFile, tokenizer: AnyTokenizer) -> tuple[bool, str]:
    """Decode a sample of documents, and check that they encode to the same ids.

    The ids are not compared if the tokenizer changes text before encoding it.

    Returns:
        (they do, what is found).
    """
    manifest, is_imported = file.manifest, file.manifest.is_imported
    # Ids of others may be of text that is not UTF-8, or was split in other ways.
    exact, special = gives_text_back(tokenizer) and not is_imported, tokenizer.special_tokens
    if (end_id := manifest.end_of_text_id) not in special.values():
        return False, f"the end-of-text id {end_id} is no special token of the tokenizer"
    # Conversations have the special tokens of their template.
    cuts = [*special.values()] if MASK in manifest.columns else []
    has_begin, n_tokens, n_documents = manifest.begin_of_text_id is not None, 0, 0
    places = np.linspace(0, file.n_documents - 1, min(_SAMPLE_DOCUMENTS, file.n_documents))
    for document in places.astype(np.int64).tolist():
        ids = file.doc(document)[has_begin:-1]
        n_tokens += len(ids)
        if n_tokens > _SAMPLE_TOKENS:
            break
        parts = np.split(ids, np.flatnonzero(np.isin(ids, cuts)))
        runs = [part[number > 0 :].tolist() for number, part in enumerate(parts)]
        try:
            errors = "replace" if is_imported else "strict"
            texts = [tokenizer.decode_bytes(run).decode(errors=errors) for run in runs]
            if exact and [*map(tokenizer.encode_ordinary, texts)] != runs:
                return False, f"document {document:,} does not encode to the same ids again"
        except UnicodeDecodeError as error:
            return False, f"document {document:,} is not UTF-8: {error.reason}"
        except EncodingError as error:
            return False, f"document {document:,} does not decode: {error}"
        n_documents += 1
    again = "and encode to the same ids again"
    if is_imported:
        again = "which another program made, so they were not encoded again"
    elif not exact:
        again = "but not always to the same text, so they were not encoded again"
    return True, f"{n_documents:,} documents decode, {again}"
