"""Whether token files are what their manifests say, down to the block that is damaged.

Law: a file is called sound only if every byte of it was read and agrees with the manifest, every id
with the vocabulary, and every document with its end. Nothing is changed, unless repair is asked
for; then only what is proven is written: see `preprocess.remake`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import EncodingError, TokenbinError
from preprocess.dataset.columns import (
    BLOCK_BYTES,
    DOCUMENT_ENDS,
    IDS,
    TokenFileError,
    manifest_name,
)
from preprocess.dataset.manifest import DataFile, Manifest, manifest_is_as_written
from preprocess.dataset.reader import TokenFile, name_of, open_tokens
from preprocess.inspect import manifests_in, tokenizer_of
from preprocess.outputs import TOKENIZER_FILE, read_stats
from preprocess.progress import Progress, Stage
from preprocess.remake import (
    Origin,
    RemakeError,
    clear_repair,
    first_difference,
    mend,
    origin_of,
    remake_manifest,
    remake_tokenizer,
    starts_of,
)
from preprocess.settings.options import StrPath, convert
from preprocess.settings.schema import VerifySettings
from preprocess.storage import OutputError, open_storage
from preprocess.token_offsets import gives_text_back

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DOCUMENTS_AT_A_TIME = 1 << 20
# Documents that are decoded and encoded again, and the tokens of them all at most.
_SAMPLE_DOCUMENTS = 16
_SAMPLE_TOKENS = 1 << 20
_SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        path: The file.
        sound: Whether it is as it should be.
        text: What was found.
        blocks: The numbers of the blocks that are damaged.
        sources: The names of the sources that are concerned.
    """

    path: Path
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()

    def line(self) -> str:
        """For people."""
        return f"{'ok     ' if self.sound else 'DAMAGED'}  {self.path}: {self.text}"


def verify(
    path: StrPath,
    *,
    tokenizer: StrPath | None = None,
    deep: bool = False,
    repair: bool = False,
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
    given = None if settings.tokenizer is None else Path(settings.tokenizer)
    paths = _token_files_in(place) if place.is_dir() else [place]
    if not paths:
        raise TokenFileError(f"{place}: no finished token file in this directory; build one first")
    if not place.exists() and not place.with_suffix(".json").exists():
        raise TokenFileError(f"{place}: no such file or directory; check the path")
    if repair:
        clear_repair(place if place.is_dir() else place.parent)
    findings: list[Finding] = []
    for each in paths:
        try:
            findings += _of_token_file(each, given, progress, deep, repair)
        except OSError as error:
            # The others are looked at all the same.
            text = f"cannot be read: {error.strerror or error}; see to the disk and its permissions"
            findings.append(Finding(Path(error.filename or each), False, text))
    return findings


def _token_files_in(directory: Path) -> list[Path]:
    """The manifests of a directory, and what should be one.

    That is one beside a .bin and its .docs, or one that a stats.json tells of, if there is anything
    left of its files.
    """
    files = open_storage(directory).finished
    there = files.names()
    of_bin, of_docs = (
        {manifest_name(name_of(directory / name)) for name in there if name.endswith(suffix)}
        for suffix in (IDS.suffix, DOCUMENT_ENDS.suffix)
    )
    names = of_bin & of_docs
    for name in there:
        stats = read_stats(files, name) if name.endswith("stats.json") else None
        if stats is not None:
            names |= stats.manifests.keys() & {*of_bin, *of_docs, *there}
    return sorted({*manifests_in(directory), *(directory / name for name in names)})


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings for JSON."""
    return {
        "sound": all(finding.sound for finding in findings),
        "findings": [asdict(finding) | {"path": str(finding.path)} for finding in findings],
    }


def _of_token_file(
    path: Path, tokenizer_path: Path | None, progress: Progress, deep: bool, repair: bool
) -> list[Finding]:
    manifest_path, bin_path = path.with_suffix(".json"), path.with_suffix(".bin")
    odd = _no_files(bin_path, [bin_path, bin_path.with_suffix(".docs")], tokenizer_path)
    if odd:
        return odd
    mended = _mended_small_files(bin_path, tokenizer_path, progress) if repair else []
    try:
        content = manifest_path.read_bytes()
        manifest = Manifest.from_json(content.decode("utf-8", "replace"), manifest_path)
    except FileNotFoundError:
        try:
            open_tokens(path)
        except TokenbinError as error:
            return [*mended, _damage(path, error)]
        raise
    except TokenbinError as error:
        return [*mended, _damage(path, error)]
    data = [path.with_name(file.name) for file in manifest.files(path.stem)]
    odd = _no_files(bin_path, data, tokenizer_path)
    if odd:
        return [*mended, *odd]
    findings = [*mended, _of_manifest(manifest_path, content)]
    findings += _of_data(bin_path, manifest, progress)
    try:
        tokenizer = tokenizer_of(bin_path, tokenizer_path)
        if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
            raise TokenFileError(
                f"built with the tokenizer {manifest.tokenizer_fingerprint[:16]}..., and"
                f" {tokenizer_path or TOKENIZER_FILE} is {tokenizer.fingerprint[:16]}..."
            )
    except TokenbinError as error:
        return [*findings, _damage(bin_path, error)]
    findings.append(_of_tokenizer(tokenizer_path or bin_path.parent / TOKENIZER_FILE, tokenizer))
    try:
        origin: Origin | None = origin_of(manifest, bin_path, tokenizer)
        why_not = ""
    except TokenbinError as error:
        origin, why_not = None, str(error)
    if repair and not all(finding.sound for finding in findings):
        done = _repaired(bin_path, manifest, origin, why_not, findings)
        findings = _of_token_file(path, tokenizer_path, progress, deep, repair=False)
        return [*mended, *findings, done]
    if all(finding.sound for finding in findings):
        file = open_tokens(bin_path)
        findings.append(_of_sample(file, tokenizer))
        findings.append(_of_sources(file, origin, why_not, deep))
    return findings


def _no_files(bin_path: Path, data: Sequence[Path], tokenizer_path: Path | None) -> list[Finding]:
    """What is no file: reading a pipe, say, would wait for somebody who writes to it."""
    # One that is given may be a directory, or a name.
    beside = [] if tokenizer_path else [bin_path.parent / TOKENIZER_FILE]
    return [
        Finding(each, False, "expected a file, found something else; remove it")
        for each in (bin_path.with_suffix(".json"), *data, *beside)
        if each.exists() and not each.is_file()
    ]


def _damage(path: Path, error: TokenbinError) -> Finding:
    return Finding(path, False, str(error).removeprefix(f"{path}: "))


def _of_manifest(path: Path, content: bytes) -> Finding:
    if manifest_is_as_written(content):
        return Finding(path, True, "the manifest is as it was written")
    return Finding(
        path,
        False,
        "the manifest is not as it was written: its text does not have its own digest; make it"
        " again (verify --repair)",
    )


def _of_tokenizer(path: Path, tokenizer: AnyTokenizer) -> Finding:
    """The fingerprint is that of the text we write; see whether this text is just that."""
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if not path.exists():
        return Finding(path, True, "the tokenizer has the fingerprint that the manifest says")
    with tempfile.TemporaryDirectory(prefix="tokenbin-") as directory:
        tokenizer.save(Path(directory, TOKENIZER_FILE))
        ours = Path(directory, TOKENIZER_FILE).read_bytes()
    content = path.read_bytes()
    if content == ours:
        return Finding(path, True, "the tokenizer is the very text that the manifest tells of")
    if len(content) == len(ours) or content.startswith(ours) or ours.startswith(content):
        return Finding(
            path, False, "the tokenizer still reads the same, but bytes of its file were changed"
        )
    return Finding(path, True, "the tokenizer is the same, in the layout of another program")


def _of_data(bin_path: Path, manifest: Manifest, progress: Progress) -> list[Finding]:
    """Sizes, blocks, ids and ends; of shards that are sound it is said all at once."""
    findings: list[Finding] = []
    sizes_agree = True
    files, n = manifest.files(bin_path.stem), len(manifest.columns)
    with progress.stage(f"verifying {bin_path.stem}", sum(file.n_bytes for file in files)) as stage:
        for start in range(0, len(files), n):
            agree, found = _of_part(bin_path, manifest, files[start : start + n], stage)
            findings += found
            sizes_agree &= agree
    if manifest.shards:
        text = f"sizes, blocks and ids of {len(manifest.shards):,} shards agree with the manifest"
        findings = [finding for finding in findings if not finding.sound] or [
            Finding(bin_path.with_suffix(".json"), True, text)
        ]
    if sizes_agree:
        findings.append(_of_ends(TokenFile(bin_path, manifest)))
    return findings


def _of_part(
    bin_path: Path, manifest: Manifest, files: Sequence[DataFile], stage: Stage
) -> tuple[bool, list[Finding]]:
    """(whether sizes agree; what was found), of the files of one shard."""
    looks = [_Look(bin_path.with_name(file.name), file, manifest) for file in files]
    for look in looks:
        look.read(stage)
    ids, docs = looks[:2]
    wrong_sizes = [Finding(look.path, False, text) for look in looks if (text := look.wrong_size())]
    findings = wrong_sizes or [
        Finding(
            ids.path,
            True,
            f"sizes agree with the manifest: {ids.file.count:,} tokens ({ids.file.dtype.name}),"
            f" {docs.file.count:,} documents",
        )
    ]
    # A manifest that says more documents than there are can still have the digests of them all.
    has_ends = docs.file.count and not docs.damaged and not docs.wrong_size()
    # Mapped; what lies behind them is none of them.
    shape = (docs.file.count,)
    ends = np.memmap(docs.path, docs.file.dtype, "r", shape=shape) if has_ends else None
    findings += [_of_blocks(look.path, manifest, look.file, look.damaged, ends) for look in looks]
    for look in looks:
        column = look.file.column
        limit = column.limit_for(manifest.vocab_size)
        if limit is None:
            continue
        text, rule = "", f"every {column.noun} is below {limit:,}"
        if look.first_wrong is not None:
            place, value = look.first_wrong
            text = f"{column.noun} of {column.per} {place:,} is {value}, and {rule}"
        elif column == IDS and look.n_ends != docs.file.count:
            text = (
                f"{look.n_ends:,} end-of-text ids ({manifest.end_of_text_id}) for"
                f" {docs.file.count:,} documents: as many are expected"
            )
        findings.append(Finding(look.path, not text, text or rule))
    return not wrong_sizes, findings


class _Look:
    """A data file that is read once, and what was found in it.

    Attributes:
        size: Its size; None if it is missing.
        damaged: The numbers of the blocks that are damaged.
        first_wrong: (position, value) of the first value that is not below its limit.
        n_ends: How many values are the end-of-text id.
    """

    def __init__(self, path: Path, file: DataFile, manifest: Manifest) -> None:
        self.path, self.file, self._manifest = path, file, manifest
        self.size: int | None = None
        self.damaged: list[int] = []
        self.first_wrong: tuple[int, int] | None = None
        self.n_ends = 0

    def wrong_size(self) -> str:
        """Say how the size is wrong; "" if it is not."""
        if self.size is None:
            return "missing, though its manifest is there"
        if self.size == self.file.n_bytes:
            return ""
        return (
            f"{self.file.n_bytes:,} bytes are expected and {self.size:,} were found; it was damaged"
            " or replaced"
        )

    def read(self, stage: Stage) -> None:
        """Read all of it; not mapped: a place that the disk cannot read is damage and no signal."""
        try:
            opened = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed below
        except FileNotFoundError:
            self.damaged = list(range(len(self.file.digests)))
            return
        buffer = np.empty(BLOCK_BYTES, np.uint8)
        with opened:
            self.size = os.fstat(opened.fileno()).st_size
            for number, digest in enumerate(self.file.digests):
                n_block = min(BLOCK_BYTES, self.file.n_bytes - number * BLOCK_BYTES)
                filled = 0
                with suppress(OSError):
                    opened.seek(number * BLOCK_BYTES)
                    while count := opened.readinto(buffer[filled:n_block].data):
                        filled += count
                if xxhash.xxh3_128_hexdigest(buffer[:filled].data) != digest:
                    self.damaged.append(number)
                self._look_at(number, buffer[: filled - filled % self.file.dtype.itemsize])
                stage.advance(filled)

    def _look_at(self, number: int, block: NDArray[np.uint8]) -> None:
        values = block.view(self.file.dtype)
        limit = self.file.column.limit_for(self._manifest.vocab_size)
        if limit is not None and len(values) and int(values.max()) >= limit:
            first = int(np.flatnonzero(values >= limit)[0])
            place = number * BLOCK_BYTES // self.file.dtype.itemsize + first
            self.first_wrong = self.first_wrong or (place, int(values[first]))
        if self.file.column == IDS:
            self.n_ends += int(np.count_nonzero(values == self._manifest.end_of_text_id))


def _of_blocks(
    path: Path,
    manifest: Manifest,
    file: DataFile,
    damaged: Sequence[int],
    ends: NDArray[np.uint64] | None,
) -> Finding:
    n_blocks, column, item = len(file.digests), file.column, file.dtype.itemsize
    if not damaged:
        return Finding(path, True, f"all {n_blocks:,} blocks have their digests")
    per_token, before = column.per == "token", file.before.count(column)
    places: list[str] = []
    names: dict[str, None] = {}
    for number in damaged:
        first = number * BLOCK_BYTES // item
        last = min((number + 1) * BLOCK_BYTES // item, file.count) - 1
        named = _sources_at(manifest, f"{column.per}s", before + first, before + last)
        names |= dict.fromkeys(named)
        if len(places) == _SHOWN:
            continue
        place = f"{number} (from byte {number * BLOCK_BYTES:,}"
        if per_token and ends is not None:
            # The type is that of the ends, or all of them would be copied to float64.
            bounds = np.array([first, last], ends.dtype)
            first, last = np.searchsorted(ends, bounds, "right").tolist()
        if not per_token or ends is not None:
            n = file.before.n_documents
            place += f", documents {n + first:,} to {n + last:,}"
        places.append(f"{place}{', of ' + ', '.join(named[:_SHOWN]) if named else ''})")
    more = f" and {len(damaged) - _SHOWN:,} more" if len(damaged) > _SHOWN else ""
    return Finding(
        path,
        False,
        f"{len(damaged):,} of {n_blocks:,} blocks are damaged: {', '.join(places)}{more}",
        tuple(damaged),
        tuple(names),
    )


def _sources_at(manifest: Manifest, what: str, first: int, last: int) -> list[str]:
    """The sources that gave tokens or documents [first, last]."""
    try:
        starts = starts_of(manifest, what)
    except TokenbinError:
        return []
    return [
        str(source.get("name"))
        for source, start, stop in zip(manifest.sources, starts, starts[1:], strict=False)
        if start <= last and first < stop
    ]


def _of_ends(file: TokenFile) -> Finding:
    """Document ends rise, stand on end-of-text ids, and the last is the number of tokens."""
    path = file.path if file.manifest.shards else file.path.with_suffix(DOCUMENT_ENDS.suffix)
    text = _wrong_end(file)
    return Finding(
        path, not text, text or f"all {file.n_documents:,} documents end on end-of-text ids"
    )


def _wrong_end(file: TokenFile) -> str:
    """Describe the first document that begins or ends where it should not; "" if none does."""
    end_id, begin_id = file.manifest.end_of_text_id, file.manifest.begin_of_text_id
    n, before = file.n_documents, 0
    last = int(file.document_ends[-1]) if n else 0
    if last < len(file):
        return f"the last document ends at {last:,}, and there are {len(file):,} tokens"
    for start in range(0, n, _DOCUMENTS_AT_A_TIME):
        ends = file.document_ends[start : start + _DOCUMENTS_AT_A_TIME]
        starts = np.append(np.uint64(before), ends[:-1])
        wrong = np.flatnonzero((ends <= starts) | (ends > len(file)))
        if len(wrong):
            place = int(wrong[0])
            what = "not past its start" if ends[place] <= starts[place] else "past the last token"
            return f"document {start + place:,} ends at {ends[place]:,}, which is {what}"
        wrong = np.flatnonzero(file.tokens[ends.astype(np.int64) - 1] != end_id)
        if len(wrong):
            place = int(wrong[0])
            where = f"document {start + place:,} ends at {ends[place]:,}"
            return f"{where} without the end-of-text id {end_id}"
        if begin_id is not None:
            wrong = np.flatnonzero(file.tokens[starts.astype(np.int64)] != begin_id)
            if len(wrong):
                where = f"document {start + int(wrong[0]):,}"
                return f"{where} does not begin with the begin-of-text id {begin_id}"
        before = int(ends[-1])
    return ""


def _of_sources(file: TokenFile, origin: Origin | None, why_not: str, deep: bool) -> Finding:
    """The sources are there; with `deep`, they encode to what the file holds."""
    if origin is None:
        # The token file may be sound all the same: sources are often thrown away.
        return Finding(file.path, not deep, f"not compared with its sources: {why_not}")
    n = len(origin.sources)
    if not deep:
        return Finding(file.path, True, f"its {n:,} sources are there, with the sizes they had")
    different = first_difference(origin, file)
    if different is None:
        return Finding(file.path, True, f"its {n:,} sources, encoded again, give the same ids")
    index, text = different
    name = origin.sources[index].name
    return Finding(file.path, False, f"{name}, encoded again: {text}", (), (name,))


def _mended_small_files(
    bin_path: Path, tokenizer_path: Path | None, progress: Progress
) -> list[Finding]:
    """Make the manifest or the tokenizer beside it again, each with the help of the other.

    A tokenizer that is named by its path, or that another manifest here tells of, is left alone.
    """
    manifest_path, beside = bin_path.with_suffix(".json"), bin_path.parent / TOKENIZER_FILE
    manifest, tokenizer = _as_written(manifest_path), None
    with suppress(TokenbinError):
        tokenizer = tokenizer_of(bin_path, tokenizer_path)
    try:
        if manifest is None:
            path, first = manifest_path, f"remove {manifest_path.name} and "
            proof = "has the digest in stats.json"
            if tokenizer is None:
                raise RemakeError(f"{TOKENIZER_FILE} is damaged or gone, too")
            remake_manifest(bin_path, tokenizer, progress)
        elif tokenizer_path is None:
            path, first, proof = beside, "", "has the fingerprint in the manifest"
            wanted = manifest.tokenizer_fingerprint
            if tokenizer is not None:
                others = filter(None, map(_as_written, manifests_in(bin_path.parent)))
                if tokenizer.fingerprint == wanted:
                    if _of_tokenizer(beside, tokenizer).sound:
                        return []
                elif any(each.tokenizer_fingerprint == tokenizer.fingerprint for each in others):
                    return []
            remake_tokenizer(bin_path, wanted, tokenizer, progress)
        else:
            return []
    except OutputError:
        raise
    except TokenbinError as error:
        text = f"cannot be repaired: {error}; put a copy of it in its place, or {first}run the"
        return [Finding(path, False, f"{text} command that made it again, with --overwrite")]
    return [Finding(path, True, f"was made again, and {proof}")]


def _as_written(path: Path) -> Manifest | None:
    """A manifest, if no byte of it was changed since it was written."""
    with suppress(TokenbinError, OSError):
        content = path.read_bytes()
        if manifest_is_as_written(content):
            return Manifest.from_json(content.decode("utf-8", "replace"), path)
    return None


def _repaired(
    bin_path: Path,
    manifest: Manifest,
    origin: Origin | None,
    why_not: str,
    findings: list[Finding],
) -> Finding:
    """Mend damaged blocks, and say how many."""
    manifest_path = bin_path.with_suffix(".json")
    if _as_written(manifest_path) is None:
        text = f"not repaired, for {manifest_path.name}, which says what is right, is damaged"
        return Finding(bin_path, False, text)
    of = {finding.path.name: finding.blocks for finding in findings if finding.blocks}
    if origin is None:
        return Finding(bin_path, False, f"cannot be repaired: {why_not}")
    # Nobody else may write here meanwhile.
    try:
        with open_storage(bin_path.parent, bin_path.stem) as storage:
            mended = mend(origin, bin_path.stem, storage, of)
    except RemakeError as error:
        return Finding(bin_path, False, f"cannot be repaired: {error}")
    wanted = sum(map(len, of.values()))
    text = f"{len(mended):,} of {wanted:,} damaged blocks were made again from the sources"
    if len(mended) < wanted:
        text += "; the others give other bytes now: the text is not what it was"
    return Finding(bin_path, len(mended) == wanted, text)


def _of_sample(file: TokenFile, tokenizer: AnyTokenizer) -> Finding:
    """Documents from the first to the last are decoded, and encoded to the same ids.

    What a tokenizer does not give back as it was need not encode to the same ids either.
    """
    exact, end_id = gives_text_back(tokenizer), file.manifest.end_of_text_id
    if end_id not in tokenizer.special_tokens.values():
        text = f"the end-of-text id {end_id} is no special token of the tokenizer"
        return Finding(file.path, False, text)
    ends = file.document_ends.astype(np.int64)
    starts = np.append(0, ends[:-1])
    chosen = np.unique(np.linspace(0, len(ends) - 1, _SAMPLE_DOCUMENTS).astype(np.int64))
    n_tokens = n_documents = 0
    begins = file.manifest.begin_of_text_id is not None
    for document in chosen.tolist() if len(ends) else []:
        ids = file[int(starts[document]) + begins : int(ends[document]) - 1]
        n_tokens += len(ids)
        if n_tokens > _SAMPLE_TOKENS:
            break
        wrong = ""
        try:
            decoded = tokenizer.decode_bytes(ids).decode()
            if exact and tokenizer.encode_ordinary(decoded) != ids.tolist():
                wrong = "does not encode to its own ids again"
        except UnicodeDecodeError as error:
            wrong = f"is not UTF-8: {error.reason}"
        except EncodingError as error:
            wrong = f"does not decode: {error}"
        if wrong:
            return Finding(file.path, False, f"document {document:,} {wrong}")
        n_documents += 1
    again = (
        "and encode to the same ids again"
        if exact
        else "but not always to the very text, so they were not encoded again"
    )
    return Finding(file.path, True, f"{n_documents:,} documents decode, {again}")
