"""Check token files against their manifests, down to the damaged block.

A file is sound only if every byte of it was read and agrees with the manifest, every id with the
vocabulary, and every document with its end. Nothing is changed, unless repair is asked for; then
only what is proven is written (`preprocess.check.rebuild`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import EncodingError, TokenbinError
from preprocess.check import rebuild
from preprocess.check.inspect import manifests_in, tokenizer_of
from preprocess.dataset.columns import BLOCK_BYTES, IDS, TokenFileError, manifest_name
from preprocess.dataset.manifest import DataFile, Manifest, manifest_is_as_written
from preprocess.dataset.reader import TokenFile, name_of, open_tokens
from preprocess.documents.token_offsets import gives_text_back
from preprocess.report.progress import Progress, Stage
from preprocess.report.summary import listed
from preprocess.run.outputs import TOKENIZER_FILE, read_stats
from preprocess.settings.options import StrPath, convert
from preprocess.settings.schema import VerifySettings
from preprocess.storage import OutputError, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DOCUMENTS_AT_A_TIME = 1 << 20
# Documents that are decoded and encoded again, and the limit of their tokens together.
_SAMPLE_DOCUMENTS = 16
_SAMPLE_TOKENS = 1 << 20
_SHOWN = 5


class Finding(NamedTuple):
    """Result of one check of a file; `blocks` are damaged, and `sources` are those they hold."""

    path: Path
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()


def verify(
    path: StrPath, *, tokenizer: StrPath | None = None, deep: bool = False, repair: bool = False,
    progress: Progress | None = None,
) -> list[Finding]:
    """Check one token file, or all in a directory, against their manifests.

    Args:
        path: A .bin, a manifest or a directory.
        tokenizer: The tokenizer they were built with; None: tokenizer.json beside each.
        deep: Encode all sources again and compare.
        repair: Rebuild what is damaged from the sources.
        progress: Shows what is done; None shows nothing.

    Raises:
        TokenFileError: There is nothing to check.
    """
    options = {**locals()}
    progress = options.pop("progress") or Progress()
    settings = convert(options, VerifySettings)
    place = Path(settings.path)
    paths = _token_files_in(place) if place.is_dir() else [place]
    if not paths:
        raise TokenFileError(f"{place}: no finished token file in this directory; build one first")
    if not place.exists() and not place.with_suffix(".json").exists():
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    if repair:
        rebuild.clear_repair(place if place.is_dir() else place.parent)
    findings: list[Finding] = []
    for each in paths:
        try:
            findings += _check_token_file(each, settings.tokenizer, progress, deep, repair)
        except OSError as error:
            # The other token files are checked all the same.
            text = f"cannot be read: {error.strerror or error}; see to the disk and its permissions"
            findings.append(Finding(Path(error.filename or each), False, text))
    return findings


def _token_files_in(directory: Path) -> list[Path]:
    """List the manifests of a directory, existing and missing ones.

    A manifest is missing where there is a .bin with its .docs, or where a stats.json lists the
    manifest and any of its files is left.
    """
    files = open_storage(directory).finished
    there = files.names()
    of_bin, of_docs = (
        {manifest_name(name_of(directory / name)) for name in there if name.endswith(suffix)}
        for suffix in (".bin", ".docs")
    )
    names = of_bin & of_docs
    for name in there:
        stats = read_stats(files, name) if name.endswith("stats.json") else None
        if stats is not None:
            names |= stats.manifests.keys() & {*of_bin, *of_docs, *there}
    return sorted({*manifests_in(directory), *(directory / name for name in names)})


def _check_token_file(
    path: Path, tokenizer_path: StrPath | None, progress: Progress, deep: bool, repair: bool
) -> list[Finding]:
    manifest_path, bin_path = path.with_suffix(".json"), path.with_suffix(".bin")
    is_beside = tokenizer_path is None
    chosen = bin_path.parent / TOKENIZER_FILE if tokenizer_path is None else Path(tokenizer_path)
    expected = [manifest_path, bin_path, bin_path.with_suffix(".docs")]
    # A tokenizer that is given may be a directory, or a name.
    if found := _no_files([*expected, chosen] if is_beside else expected):
        return found
    rebuilt = _rebuild_small_files(bin_path, tokenizer_path, progress) if repair else []
    try:
        if not manifest_path.exists():
            open_tokens(path)  # raises an error that says what is there instead
        content = manifest_path.read_bytes()
        manifest = Manifest.from_json(content.decode("utf-8", "replace"), manifest_path)
    except TokenbinError as error:
        return [*rebuilt, Finding(path, False, str(error).removeprefix(f"{path}: "))]
    if found := _no_files([path.with_name(file.name) for file in manifest.files(path.stem)]):
        return [*rebuilt, *found]
    sound, damaged = "the manifest is as it was written", "the manifest is not as it was written"
    is_sound = manifest_is_as_written(content)
    text = sound if is_sound else f"{damaged}: its own digest differs; rebuild it (verify --repair)"
    findings = [*rebuilt, Finding(manifest_path, is_sound, text)]
    findings += _check_data(bin_path, manifest, progress)
    try:
        tokenizer, wanted = tokenizer_of(bin_path, tokenizer_path), manifest.tokenizer_fingerprint
        if tokenizer.fingerprint != wanted:
            name = TOKENIZER_FILE if is_beside else tokenizer_path
            other = f"{name} is {tokenizer.fingerprint[:16]}..."
            raise TokenFileError(f"built with the tokenizer {wanted[:16]}..., and {other}")
    except TokenbinError as error:
        return [*findings, Finding(bin_path, False, str(error).removeprefix(f"{bin_path}: "))]
    findings.append(_check_tokenizer(chosen, tokenizer))
    if all(finding.sound for finding in findings):
        file = open_tokens(bin_path)
        return [*findings, _check_sample(file, tokenizer), _check_sources(file, tokenizer, deep)]
    if not repair:
        return findings
    done = _repair_blocks(bin_path, manifest, tokenizer, findings)
    findings = _check_token_file(path, tokenizer_path, progress, deep, repair=False)
    return [*rebuilt, *findings, done]


def _no_files(paths: Sequence[Path]) -> list[Finding]:
    """Find pipes, which would be waited for, directories and the like."""
    text = "expected a file, found something else; remove it"
    return [Finding(path, False, text) for path in paths if path.exists() and not path.is_file()]


def _check_tokenizer(path: Path, tokenizer: AnyTokenizer) -> Finding:
    """Compare a file with the text that its tokenizer is saved as, which the fingerprint is of."""
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if not path.exists():
        return Finding(path, True, "the tokenizer has the fingerprint that the manifest says")
    with tempfile.TemporaryDirectory(prefix="tokenbin-") as directory:
        saved = Path(directory, TOKENIZER_FILE)
        tokenizer.save(saved)
        ours = saved.read_bytes()
    content = path.read_bytes()
    if content == ours:
        return Finding(path, True, "the tokenizer is the very text that the manifest tells of")
    if len(content) != len(ours) and not (content.startswith(ours) or ours.startswith(content)):
        return Finding(path, True, "the tokenizer is the same, in the layout of another program")
    text = "the tokenizer still reads the same, but bytes of its file were changed"
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
        path = file.path if manifest.shards else bin_path.with_suffix(".docs")
        wrong = _wrong_end(file)
        text = wrong or f"all {file.n_documents:,} documents end on end-of-text ids"
        findings.append(Finding(path, not wrong, text))
    return findings


class _Scan:
    """What one pass over a data file found.

    The file is read, not mapped: a place that the disk cannot read is damage, and no signal.
    """

    def __init__(self, path: Path, file: DataFile, manifest: Manifest, stage: Stage) -> None:
        self.path, self.file = path, file
        self.wrong_size = "missing, though its manifest is there"  # "": the size is right
        self.damaged = list(range(len(file.digests)))  # numbers of blocks
        self.first_wrong: tuple[int, int] | None = None  # (position, value that is too large)
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
    # A manifest that states more documents than there are can still have all their digests.
    has_ends = docs.file.count and not docs.damaged and not docs.wrong_size
    ends = np.memmap(docs.path, docs.file.dtype, "r") if has_ends else None
    findings += [_check_blocks(scan, manifest, ends) for scan in scans]
    for scan in scans:
        column, wrong = scan.file.column, ""
        if (limit := column.limit_for(manifest.vocab_size)) is None:
            continue
        rule = f"every {column.noun} is below {limit:,}"
        if scan.first_wrong is not None:
            place, value = scan.first_wrong
            wrong = f"{column.noun} of {column.per} {place:,} is {value}, and {rule}"
        elif column == IDS and scan.n_ends != docs.file.count:
            found = f"{scan.n_ends:,} end-of-text ids ({manifest.end_of_text_id})"
            wrong = f"{found} for {docs.file.count:,} documents: as many are expected"
        findings.append(Finding(scan.path, not wrong, wrong or rule))
    return findings


def _check_blocks(scan: _Scan, manifest: Manifest, ends: NDArray[np.uint64] | None) -> Finding:
    """Report damaged blocks, with their documents (by `ends`, those of the shard) and sources."""
    file, n_blocks = scan.file, len(scan.file.digests)
    if not scan.damaged:
        return Finding(scan.path, True, f"all {n_blocks:,} blocks have their digests")
    places: list[str] = []
    names: dict[str, None] = {}
    per_token, n = file.column.per == "token", file.before.n_documents
    for number in scan.damaged:
        named: list[str] = []
        with suppress(rebuild.RebuildError):
            indices = rebuild.sources_at(manifest, file, number)
            sources = manifest.sources[indices.start : indices.stop]
            named = [str(source.get("name")) for source in sources]
        names |= dict.fromkeys(named)
        place = f"{number} (from byte {number * BLOCK_BYTES:,}"
        bounds = [file.block(number).start, file.block(number).stop - 1]
        if per_token and ends is not None:
            # The type is that of the ends, or all of them would be copied to float64.
            bounds = np.searchsorted(ends, np.array(bounds, ends.dtype), "right").tolist()
        if not per_token or ends is not None:
            place += f", documents {n + bounds[0]:,} to {n + bounds[1]:,}"
        places.append(f"{place}{', of ' + ', '.join(named[:_SHOWN]) if named else ''})")
    text = f"{len(places):,} of {n_blocks:,} blocks are damaged: {listed(places, _SHOWN)}"
    return Finding(scan.path, False, text, tuple(scan.damaged), tuple(names))


def _wrong_end(file: TokenFile) -> str:
    """Describe the first document that begins or ends where it should not; "" if none does.

    Document ends rise, stand behind end-of-text ids, and the last is the number of tokens.
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


def _check_sample(file: TokenFile, tokenizer: AnyTokenizer) -> Finding:
    """Decode documents from the first to the last, and encode them to the same ids.

    A tokenizer that does not give text back exactly need not give the same ids either.
    """
    exact, end_id = gives_text_back(tokenizer), file.manifest.end_of_text_id
    if end_id not in tokenizer.special_tokens.values():
        text = f"the end-of-text id {end_id} is no special token of the tokenizer"
        return Finding(file.path, False, text)
    ends, has_begin = file.document_ends, file.manifest.begin_of_text_id is not None
    chosen = np.unique(np.linspace(0, len(ends) - 1, _SAMPLE_DOCUMENTS).astype(np.int64))
    n_tokens = n_documents = 0
    for document in chosen.tolist() if len(ends) else []:
        start = int(ends[document - 1]) if document else 0
        ids = file[start + has_begin : int(ends[document]) - 1]
        n_tokens += len(ids)
        if n_tokens > _SAMPLE_TOKENS:
            break
        try:
            decoded = tokenizer.decode_bytes(ids).decode()
            is_same = not exact or tokenizer.encode_ordinary(decoded) == ids.tolist()
            wrong = "" if is_same else "does not encode to its own ids again"
        except UnicodeDecodeError as error:
            wrong = f"is not UTF-8: {error.reason}"
        except EncodingError as error:
            wrong = f"does not decode: {error}"
        if wrong:
            return Finding(file.path, False, f"document {document:,} {wrong}")
        n_documents += 1
    again = "but not always to the very text, so they were not encoded again"
    text = f"{n_documents:,} documents decode, "
    return Finding(file.path, True, text + ("and encode to the same ids again" if exact else again))


def _check_sources(file: TokenFile, tokenizer: AnyTokenizer, deep: bool) -> Finding:
    """Check that the sources are there; with `deep`, that they encode to what the file holds."""
    try:
        origin = rebuild.origin_of(file.manifest, file.path, tokenizer)
    except rebuild.RebuildError as error:
        # The token file may be sound all the same: sources are often thrown away.
        return Finding(file.path, not deep, f"not compared with its sources: {error}")
    n = len(origin.sources)
    if not deep:
        return Finding(file.path, True, f"its {n:,} sources are there, with the sizes they had")
    if (different := rebuild.first_difference(origin, file)) is None:
        return Finding(file.path, True, f"its {n:,} sources, encoded again, give the same ids")
    name, text = different
    return Finding(file.path, False, f"{name}, encoded again: {text}", (), (name,))


def _rebuild_small_files(
    bin_path: Path, tokenizer_path: StrPath | None, progress: Progress
) -> list[Finding]:
    """Rebuild the manifest or the tokenizer beside it, each with the help of the other.

    A tokenizer that is given, or that another manifest here was built with, is left alone.
    """
    manifest_path, beside = bin_path.with_suffix(".json"), bin_path.parent / TOKENIZER_FILE
    manifest, tokenizer = _as_written(manifest_path), None
    with suppress(TokenbinError):
        tokenizer = tokenizer_of(bin_path, tokenizer_path)
    path, first, proof = beside, "", "has the fingerprint in the manifest"
    try:
        if manifest is None:
            path, first = manifest_path, f"remove {manifest_path.name} and "
            proof = "has the digest in stats.json"
            if tokenizer is None:
                raise rebuild.RebuildError(f"{TOKENIZER_FILE} is damaged or gone, too")
            rebuild.rebuild_manifest(bin_path, tokenizer, progress)
        elif tokenizer_path is None:
            wanted = manifest.tokenizer_fingerprint
            if tokenizer is not None:
                others = filter(None, map(_as_written, manifests_in(bin_path.parent)))
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
    except TokenbinError as error:
        text = f"cannot be repaired: {error}; put a copy of it in its place, or {first}run the"
        return [Finding(path, False, f"{text} command that made it again, with --overwrite")]
    return [Finding(path, True, f"was rebuilt, and {proof}")]


def _as_written(path: Path) -> Manifest | None:
    """Read a manifest; None if any byte of it was changed since it was written."""
    with suppress(TokenbinError, OSError):
        content = path.read_bytes()
        if manifest_is_as_written(content):
            return Manifest.from_json(content.decode("utf-8", "replace"), path)
    return None


def _repair_blocks(
    bin_path: Path, manifest: Manifest, tokenizer: AnyTokenizer, findings: Sequence[Finding]
) -> Finding:
    """Mend the damaged blocks of findings, and report how many."""
    manifest_path = bin_path.with_suffix(".json")
    if _as_written(manifest_path) is None:
        text = f"not repaired, for {manifest_path.name}, which says what is right, is damaged"
        return Finding(bin_path, False, text)
    damaged = {finding.path.name: finding.blocks for finding in findings if finding.blocks}
    try:
        origin = rebuild.origin_of(manifest, bin_path, tokenizer)
        with open_storage(bin_path.parent, bin_path.stem) as storage:
            n_mended = rebuild.mend(origin, bin_path.stem, storage, damaged)
    except rebuild.RebuildError as error:
        return Finding(bin_path, False, f"cannot be repaired: {error}")
    n = sum(map(len, damaged.values()))
    text = f"{n_mended:,} of {n:,} damaged blocks were rebuilt from the sources"
    if n_mended < n:
        text += "; the others give other bytes now: the text is not what it was"
    return Finding(bin_path, n_mended == n, text)
