"""Check token files against their manifests, and locate damaged blocks.

A file is sound if all blocks have their digests, all ids are in the vocabulary, and all documents
end on an end-of-text id; every byte is read. Nothing is changed without `repair`, which writes only
proven content (`preprocess.check.rebuild`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import EncodingError, TokenmillError, spelled
from bpe.files.locations import is_url, shown_url
from preprocess.check import rebuild, verify_rows
from preprocess.check.findings import Finding as Finding
from preprocess.check.inspect import load_tokenizer_of
from preprocess.check.verify_urls import verify_urls
from preprocess.dataset.columns import BLOCK_BYTES, IDS, MASK, TokenFileError, manifest_name
from preprocess.dataset.manifest import (
    SELECTED,
    DataFile,
    Manifest,
    manifest_is_as_written,
)
from preprocess.dataset.reader import TokenFile, name_of, open_tokens
from preprocess.documents.token_lengths import gives_text_back
from preprocess.options import VerifySettings
from preprocess.report.progress import Progress, Stage, progress_of
from preprocess.report.summary import listed
from preprocess.run.finished import find_joined, find_manifests, read_stats
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.settings import SettingsError, StrPath, takes
from preprocess.storage import OutputError, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DOCUMENTS_AT_A_TIME = 1 << 20
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
    """
    progress = progress_of(settings.progress)
    if is_url(settings.path):
        if settings.deep or settings.repair:
            what = "deep" if settings.deep else "repair"
            raise SettingsError(
                f"{what} is for files on this machine, and {shown_url(settings.path)} is a URL;"
                " copy the files, or leave it out"
            )
        return verify_urls(settings.path, progress)
    given = Path(settings.path)
    places = verify_rows.find_places(given) if given.is_dir() else [given]
    findings: list[Finding] = []
    for place in places:
        if place != given and not place.exists():
            text = "is not here, so it is not checked, though config.json has it"
            findings.append(Finding(place, True, text))
            continue
        try:
            findings += _verify_place(place, settings, progress)
        except TokenFileError as error:
            if places == [given]:
                raise
            findings.append(Finding(place, False, str(error).removeprefix(f"{place}: ")))
    return findings


def _verify_place(place: Path, settings: VerifySettings, progress: Progress) -> list[Finding]:
    """Check a token file, or all token files or rows in a directory."""
    deep, repair = settings.deep, settings.repair
    paths = _find_token_files(place) if place.is_dir() else [place]
    if not place.exists() and not place.with_suffix(".json").exists():
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    if repair:
        rebuild.clear_repair(place if place.is_dir() else place.parent)
    findings: list[Finding] = []
    for each in paths:
        try:
            findings += _check_token_file(each, settings.tokenizer, progress, deep, repair)
        except OSError as error:
            # Continue with the other token files.
            text = f"cannot be read: {error.strerror or error}; check the disk and permissions"
            findings.append(Finding(Path(error.filename or each), False, text))
    if place.is_dir():
        # JSON or Parquet beside a dataset may be text.
        rows = verify_rows.find_rows(place)
        directories = [each for each in rows if each != place or not paths]
        findings += verify_rows.verify(directories, settings.tokenizer, progress, deep, repair)
    if not findings:
        raise TokenFileError(f"{place}: no finished token file in this directory; build one first")
    return [each._replace(text=spelled(each.text)) for each in findings]


def _find_token_files(directory: Path) -> list[Path]:
    """List the manifests of a directory, existing and missing ones.

    A manifest is missing if its .bin and .docs exist, or if a stats.json lists it and one of its
    files exists, or it joins parts.
    """
    files = open_storage(directory).final
    there = files.names()
    of_bin, of_docs = (
        {manifest_name(name_of(directory / name)) for name in there if name.endswith(suffix)}
        for suffix in (".bin", ".docs")
    )
    names = of_bin & of_docs
    for name in there:
        stats = read_stats(files, name) if name.endswith("stats.json") else None
        if stats is not None and rebuild.joins_parts(stats.settings):
            names |= stats.manifests.keys()
        elif stats is not None:
            names |= stats.manifests.keys() & {*of_bin, *of_docs, *there}
    names -= find_joined(files)
    return sorted({*find_manifests(directory), *(directory / name for name in names)})


def _check_token_file(
    path: Path, tokenizer_path: StrPath | None, progress: Progress, deep: bool, repair: bool
) -> list[Finding]:
    manifest_path, bin_path = path.with_suffix(".json"), path.with_suffix(".bin")
    is_beside = tokenizer_path is None
    chosen = bin_path.parent / TOKENIZER_FILE if tokenizer_path is None else Path(tokenizer_path)
    expected = [manifest_path, bin_path, bin_path.with_suffix(".docs")]
    # A tokenizer that is given may be a directory, or a name.
    if found := _check_regular([*expected, chosen] if is_beside else expected):
        return found
    rebuilt = _rebuild_small_files(bin_path, tokenizer_path, progress) if repair else []
    try:
        if not manifest_path.exists():
            open_tokens(path)  # raises an error that describes the existing files
        content = manifest_path.read_bytes()
        manifest = Manifest.from_json(content.decode("utf-8", "replace"), manifest_path)
    except TokenmillError as error:
        return [*rebuilt, Finding(path, False, str(error).removeprefix(f"{path}: "))]
    if found := _check_regular([path.with_name(file.name) for file in manifest.files(path.stem)]):
        return [*rebuilt, *found]
    is_sound, text = manifest_is_as_written(content), "the manifest is as it was written"
    if not is_sound:
        text = "the manifest was changed: its own digest differs; rebuild it (verify --repair)"
    findings = [*rebuilt, Finding(manifest_path, is_sound, text)]
    findings += _check_data(bin_path, manifest, progress)
    if not manifest.tokenizer_fingerprint:
        text = "imported without a tokenizer, so there is no text to check or repair the ids by"
        return [*findings, Finding(bin_path, True, text)]
    try:
        if _is_elsewhere(bin_path, manifest, tokenizer_path):
            text = "not checked with its tokenizer, which is not beside it; give it (--tokenizer)"
            return [*findings, Finding(bin_path, not deep, text)]
        tokenizer = load_tokenizer_of(bin_path, tokenizer_path)
        wanted = manifest.tokenizer_fingerprint
        if tokenizer.fingerprint != wanted:
            name = TOKENIZER_FILE if is_beside else tokenizer_path
            other = f"{name} is {tokenizer.fingerprint[:16]}..."
            raise TokenFileError(f"built with the tokenizer {wanted[:16]}..., and {other}")
    except TokenmillError as error:
        return [*findings, Finding(bin_path, False, str(error).removeprefix(f"{bin_path}: "))]
    findings.append(_check_tokenizer(chosen, tokenizer))
    if all(finding.sound for finding in findings):
        file = open_tokens(bin_path)
        checked = _check_sources(file, tokenizer, deep, progress)
        return [*findings, _check_sample(file, tokenizer), checked]
    if not repair:
        return findings
    done = _repair_files(bin_path, manifest, tokenizer, findings, progress)
    findings = _check_token_file(path, tokenizer_path, progress, deep, repair=False)
    return [*rebuilt, *findings, done]


def _is_elsewhere(bin_path: Path, manifest: Manifest, given: StrPath | None) -> bool:
    """Return True if no tokenizer is given, and that of a token file was never beside it."""
    from bpe import load_tokenizer

    path = bin_path.parent / TOKENIZER_FILE
    if given is not None or rebuild.has_own_tokenizer(bin_path):
        return False
    with suppress(TokenmillError):  # a damaged one is reported
        fingerprint = load_tokenizer(path).fingerprint if path.exists() else ""
        return fingerprint != manifest.tokenizer_fingerprint
    return False


def _check_regular(paths: Sequence[Path]) -> list[Finding]:
    """Report paths that are not regular files: reading a pipe would block."""
    text = "expected a file, found something else; remove it"
    return [Finding(path, False, text) for path in paths if path.exists() and not path.is_file()]


def _check_tokenizer(path: Path, tokenizer: AnyTokenizer) -> Finding:
    """Compare the bytes of a tokenizer file with those that its tokenizer is saved as."""
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if not path.exists():
        return Finding(path, True, "the tokenizer has the fingerprint in the manifest")
    content, ours = path.read_bytes(), tokenizer.to_json().encode()
    if content == ours:
        return Finding(path, True, "its bytes have the fingerprint in the manifest")
    if len(content) != len(ours) and not (content.startswith(ours) or ours.startswith(content)):
        return Finding(path, True, "the tokenizer is the same, saved by another program")
    text = "the tokenizer is the same, but bytes of its file were changed"
    return Finding(path, False, text)


def _check_data(bin_path: Path, manifest: Manifest, progress: Progress) -> list[Finding]:
    """Check sizes, blocks, values and document ends; sound shards share one finding."""
    files, n = manifest.files(bin_path.stem), len(manifest.columns)
    with progress.stage(f"verifying {bin_path.stem}", sum(file.n_bytes for file in files)) as stage:
        scans = [_Scan(bin_path.with_name(file.name), file, manifest, stage) for file in files]
    parts = (_check_part(scans[i : i + n], manifest) for i in range(0, len(scans), n))
    findings = list(chain.from_iterable(parts))
    if manifest.shards:
        text = f"sizes, blocks and ids of {len(manifest.shards):,} shards agree with the manifest"
        sound = Finding(bin_path.with_suffix(".json"), True, text)
        findings = [finding for finding in findings if not finding.sound] or [sound]
    if not any(scan.wrong_size for scan in scans):
        file = TokenFile(bin_path, manifest)
        path = bin_path.with_suffix(".json" if manifest.shards else ".docs")
        wrong = _find_wrong_end(file)
        text = wrong or f"all {file.n_documents:,} documents end on end-of-text ids"
        findings.append(Finding(path, not wrong, text))
    return findings


class _Scan:
    """Result of one pass over a data file.

    The file is read, not mapped: an unreadable block is reported as damaged, and raises no SIGBUS.
    """

    def __init__(self, path: Path, file: DataFile, manifest: Manifest, stage: Stage) -> None:
        self.path, self.file = path, file
        self.wrong_size = "missing, though its manifest is there"  # "": the size is right
        self.damaged = list(range(len(file.digests)))  # numbers of blocks
        self.first_wrong: tuple[int, int] | None = None  # (position, value above the limit)
        self.n_ends = 0  # number of end-of-text ids
        limit = file.column.limit_for(manifest.vocab_size)
        buffer = np.empty(BLOCK_BYTES, np.uint8)
        with suppress(FileNotFoundError), open(path, "rb", buffering=0) as opened:
            size, self.wrong_size, self.damaged = os.fstat(opened.fileno()).st_size, "", []
            if size != file.n_bytes:
                text = f"{file.n_bytes:,} bytes are expected and {size:,} were found"
                self.wrong_size = f"{text}; it was damaged or replaced"
            for number, digest in enumerate(file.digests):
                n_bytes, filled = len(file.block(number)) * file.dtype.itemsize, 0
                with suppress(OSError):
                    opened.seek(number * BLOCK_BYTES)
                    while count := opened.readinto(buffer[filled:n_bytes].data):
                        filled += count
                if xxhash.xxh3_128_hexdigest(buffer[:filled].data) != digest:
                    self.damaged.append(number)
                values = buffer[: filled - filled % file.dtype.itemsize].view(file.dtype)
                if limit is not None and len(values) and int(values.max()) >= limit:
                    first = int(np.flatnonzero(values >= limit)[0])
                    place = file.block(number).start + first
                    self.first_wrong = self.first_wrong or (place, int(values[first]))
                if file.column == IDS:
                    self.n_ends += int(np.count_nonzero(values == manifest.end_of_text_id))
                stage.advance(filled)


def _check_part(scans: Sequence[_Scan], manifest: Manifest) -> list[Finding]:
    """Check sizes, blocks and values of one shard."""
    ids, docs = scans[:2]
    findings = [Finding(scan.path, False, scan.wrong_size) for scan in scans if scan.wrong_size]
    if not findings:
        counts = f"{ids.file.count:,} tokens ({ids.file.dtype.name}), {docs.file.count:,} documents"
        findings.append(Finding(ids.path, True, f"sizes agree with the manifest: {counts}"))
    # A wrong number of documents in the manifest need not change any digest.
    has_ends = docs.file.count and not docs.damaged and not docs.wrong_size
    ends = np.memmap(docs.path, docs.file.dtype, "r") if has_ends else None
    findings += [_check_blocks(scan, manifest, ends) for scan in scans]
    # Chat templates may end turns with it, too.
    ends_turns = any(scan.file.column.of_spans for scan in scans)
    for scan in scans:
        column, wrong = scan.file.column, ""
        if (limit := column.limit_for(manifest.vocab_size)) is None:
            continue
        rule = f"every {column.noun} is below {limit:,}"
        if scan.first_wrong is not None:
            place, value = scan.first_wrong
            wrong = f"{column.noun} of {column.per} {place:,} is {value}, and {rule}"
        elif column == IDS and scan.n_ends != docs.file.count and not (
            ends_turns and scan.n_ends > docs.file.count
        ):
            found = f"{scan.n_ends:,} end-of-text ids ({manifest.end_of_text_id})"
            wrong = f"{found} for {docs.file.count:,} documents, expected one for each"
        findings.append(Finding(scan.path, not wrong, wrong or rule))
    return findings


def _check_blocks(scan: _Scan, manifest: Manifest, ends: NDArray[np.uint64] | None) -> Finding:
    """Report damaged blocks with their documents and sources; `ends` are those of the shard."""
    file, n_blocks = scan.file, len(scan.file.digests)
    if not scan.damaged:
        return Finding(scan.path, True, f"all {n_blocks:,} blocks have their digests")
    places: list[str] = []
    names: dict[str, None] = {}
    per_token, n = file.column.per == "token", file.before.n_documents
    for number in scan.damaged:
        named: list[str] = []
        with suppress(rebuild.RebuildError):
            indices = rebuild.find_sources_of(manifest, file, number)
            sources = manifest.sources[indices.start : indices.stop]
            named = [str(source.get("name")) for source in sources]
        names |= dict.fromkeys(named)
        place = f"{number} (from byte {number * BLOCK_BYTES:,}"
        bounds = [file.block(number).start, file.block(number).stop - 1]
        if per_token and ends is not None:
            # The dtype is that of the ends, or searchsorted would copy them to float64.
            bounds = np.searchsorted(ends, np.array(bounds, ends.dtype), "right").tolist()
        if not per_token or ends is not None:
            place += f", documents {n + bounds[0]:,} to {n + bounds[1]:,}"
        places.append(f"{place}{', of ' + ', '.join(named[:_SHOWN]) if named else ''})")
    text = f"{len(places):,} of {n_blocks:,} blocks are damaged: {listed(places, _SHOWN)}"
    return Finding(scan.path, False, text, tuple(scan.damaged), tuple(names))


def _find_wrong_end(file: TokenFile) -> str:
    """Describe the first document with a wrong start or end; "" if there is none.

    Ends must ascend and follow end-of-text ids, and the last must be the number of tokens.
    """
    end_id, begin_id = file.manifest.end_of_text_id, file.manifest.begin_of_text_id
    n, before = file.n_documents, 0
    last = int(file.document_ends[-1]) if n else 0
    if last < len(file):
        return f"the last document ends at {last:,}, and there are {len(file):,} tokens"
    for start in range(0, n, _DOCUMENTS_AT_A_TIME):
        ends = file.document_ends[start : start + _DOCUMENTS_AT_A_TIME]
        starts = np.append(np.uint64(before), ends[:-1])
        wrong = (ends <= starts) | (ends > len(file))
        if wrong.any():
            place = int(wrong.argmax())
            what = "not past its start" if ends[place] <= starts[place] else "past the last token"
            return f"document {start + place:,} ends at {ends[place]:,}, which is {what}"
        wrong = file.tokens[ends.astype(np.int64) - 1] != end_id
        if wrong.any():
            place = int(wrong.argmax())
            where = f"document {start + place:,} ends at {ends[place]:,}"
            return f"{where} without the end-of-text id {end_id}"
        if begin_id is not None:
            wrong = file.tokens[starts.astype(np.int64)] != begin_id
            if wrong.any():
                where = f"document {start + int(wrong.argmax()):,}"
                return f"{where} does not begin with the begin-of-text id {begin_id}"
        before = int(ends[-1])
    return ""


def _runs(ids: np.ndarray, special: list[int]) -> list[list[int]]:
    """Return the ids between special tokens."""
    places = np.flatnonzero(np.isin(ids, special))
    bounds = zip([0, *places + 1], [*places, len(ids)], strict=True)
    return [ids[start:stop].tolist() for start, stop in bounds]


def _check_sample(file: TokenFile, tokenizer: AnyTokenizer) -> Finding:
    """Decode a sample of documents, and check that they encode to the same ids.

    The ids are not compared if the tokenizer changes text before encoding it.
    """
    path, manifest = Path(file.path), file.manifest
    # Ids of others may be of text that is not UTF-8, or was split in other ways.
    exact, end_id = gives_text_back(tokenizer) and not manifest.is_imported, manifest.end_of_text_id
    special, has_mask = [*tokenizer.special_tokens.values()], MASK in manifest.columns
    if end_id not in tokenizer.special_tokens.values():
        text = f"the end-of-text id {end_id} is no special token of the tokenizer"
        return Finding(path, False, text)
    ends, has_begin = file.document_ends, manifest.begin_of_text_id is not None
    chosen = np.unique(np.linspace(0, len(ends) - 1, _SAMPLE_DOCUMENTS).astype(np.int64))
    n_tokens = n_documents = 0
    for document in chosen.tolist() if len(ends) else []:
        start = int(ends[document - 1]) if document else 0
        ids = file[start + has_begin : int(ends[document]) - 1]
        n_tokens += len(ids)
        if n_tokens > _SAMPLE_TOKENS:
            break
        try:
            # Conversations have the special tokens of their template.
            runs = _runs(ids, special) if has_mask else [ids.tolist()]
            errors = "replace" if manifest.is_imported else "strict"
            texts = [(tokenizer.decode_bytes(run).decode(errors=errors), run) for run in runs]
            is_same = not exact or all(tokenizer.encode_ordinary(x) == run for x, run in texts)
            wrong = "" if is_same else "does not encode to the same ids again"
        except UnicodeDecodeError as error:
            wrong = f"is not UTF-8: {error.reason}"
        except EncodingError as error:
            wrong = f"does not decode: {error}"
        if wrong:
            return Finding(path, False, f"document {document:,} {wrong}")
        n_documents += 1
    again = "but not always to the same text, so they were not encoded again"
    if manifest.is_imported:
        again = "which another program made, so they were not encoded again"
    text = f"{n_documents:,} documents decode, "
    return Finding(path, True, text + ("and encode to the same ids again" if exact else again))


def _check_sources(
    file: TokenFile, tokenizer: AnyTokenizer, deep: bool, progress: Progress
) -> Finding:
    """Check that the sources exist; with `deep`, that they encode to the ids in the file."""
    path = Path(file.path)
    if file.manifest.is_imported:
        names = ", ".join(str(source.get("name")) for source in file.manifest.sources)
        return Finding(path, True, f"its ids were imported from {names}, not made of text")
    if any(source.get("name") == SELECTED for source in file.manifest.sources):
        return Finding(path, True, f"not compared with its sources: {rebuild.SELECTED_BEFORE}")
    try:
        origin = rebuild.find_origin(file.manifest, path, tokenizer)
        n = len(origin.sources)
        if not deep:
            return Finding(path, True, f"its {n:,} sources exist and have the same sizes")
        if not origin.selects:
            different = rebuild.find_difference(origin, file)
        else:
            with rebuild.open_repair(path) as storage:
                origin = rebuild.find_origin(
                    file.manifest, path, tokenizer, storage, progress
                )
                different = rebuild.find_difference(origin, file)
    except (rebuild.RebuildError, OutputError) as error:
        # Not damage: sources are often deleted after a build.
        return Finding(path, not deep, f"not compared with its sources: {error}")
    if different is None:
        return Finding(path, True, f"its {n:,} sources, encoded again, give the same ids")
    name, text = different
    return Finding(path, False, f"{name}, encoded again: {text}", (), (name,))


def _rebuild_small_files(
    bin_path: Path, tokenizer_path: StrPath | None, progress: Progress
) -> list[Finding]:
    """Rebuild the manifest with the help of the tokenizer, or tokenizer.json with the manifest.

    A tokenizer that is given, or that another manifest in the directory needs, is not replaced.
    """
    manifest_path, beside = bin_path.with_suffix(".json"), bin_path.parent / TOKENIZER_FILE
    manifest, tokenizer = _read_unchanged(manifest_path), None
    with suppress(TokenmillError):
        tokenizer = load_tokenizer_of(bin_path, tokenizer_path)
    path, first, proof = beside, "", "has the fingerprint in the manifest"
    try:
        if manifest is None:
            path, first = manifest_path, f"remove {manifest_path.name} and "
            proof = "has the digest in stats.json"
            if tokenizer is None:
                raise rebuild.RebuildError(f"{TOKENIZER_FILE} is damaged or missing, too")
            rebuild.rebuild_manifest(bin_path, tokenizer, progress)
        elif tokenizer_path is None and manifest.tokenizer_fingerprint:
            wanted = manifest.tokenizer_fingerprint
            if _is_elsewhere(bin_path, manifest, tokenizer_path):
                return []
            if tokenizer is not None:
                others = filter(None, map(_read_unchanged, find_manifests(bin_path.parent)))
                if tokenizer.fingerprint == wanted:
                    if _check_tokenizer(beside, tokenizer).sound:
                        return []
                elif any(each.tokenizer_fingerprint == tokenizer.fingerprint for each in others):
                    return []
            rebuild.rebuild_tokenizer(bin_path, wanted, tokenizer, progress)
        else:
            return []
    except OutputError:
        raise
    except TokenmillError as error:
        text = f"cannot be repaired: {error}; restore a copy of it, or {first}rerun the command"
        return [Finding(path, False, f"{text} that wrote it, with --overwrite")]
    return [Finding(path, True, f"was rebuilt, and {proof}")]


def _read_unchanged(path: Path) -> Manifest | None:
    """Read a manifest; None if it was changed since it was written, or is missing."""
    with suppress(TokenmillError, OSError):
        content = path.read_bytes()
        if manifest_is_as_written(content):
            return Manifest.from_json(content.decode("utf-8", "replace"), path)
    return None


def _repair_files(
    bin_path: Path, manifest: Manifest, tokenizer: AnyTokenizer, findings: Sequence[Finding],
    progress: Progress,
) -> Finding:
    """Rebuild the files with damaged blocks or wrong sizes, and report their number."""
    manifest_path = bin_path.with_suffix(".json")
    if _read_unchanged(manifest_path) is None:
        text = f"not repaired, for {manifest_path.name}, which has the digests, is damaged"
        return Finding(bin_path, False, text)
    damaged = {Path(finding.path).name for finding in findings if finding.blocks}
    try:
        with rebuild.open_repair(bin_path) as storage:
            sizes = storage.final.sizes()
            files = manifest.files(bin_path.stem)
            damaged |= {file.name for file in files if sizes.get(file.name) != file.n_bytes}
            origin = rebuild.find_origin(manifest, bin_path, tokenizer, storage, progress)
            rebuilt = rebuild.rebuild_files(origin, bin_path.stem, storage, damaged)
    except rebuild.RebuildError as error:
        return Finding(bin_path, False, f"cannot be repaired: {error}")
    text = f"{len(rebuilt):,} of {len(damaged):,} damaged files were rebuilt from the sources"
    if lost := damaged.difference(rebuilt):
        names = listed(sorted(lost), _SHOWN)
        text += f"; {names}: the sources encode to other bytes now, their text has changed"
    return Finding(bin_path, not lost, text)
