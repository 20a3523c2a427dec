"""Check datasets at URLs against their manifests: sizes, blocks, and the tokenizer.

Blocks with their digests are as they were written, and were checked then, so nothing is decoded.
Files are repaired where they are local.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from functools import partial
from os.path import splitext

import xxhash

from bpe.errors import CorpusError, TokenmillError
from bpe.files.locations import shown_url, url_name
from bpe.parallel import run_in_order
from preprocess.check.findings import Finding
from preprocess.dataset import columns as table
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import DataFile, Manifest, manifest_is_as_written
from preprocess.report.progress import Progress, Stage
from preprocess.report.summary import listed
from preprocess.run.finished import find_joined, find_token_files, manifests_in
from preprocess.run.outputs import TOKENIZER_FILE
from preprocess.storage import Files, open_files
from preprocess.storage.files import directory_of

_REQUESTS_AT_ONCE = 8
_SHOWN = 5


def verify_urls(url: str, progress: Progress) -> list[Finding]:
    """Check the dataset at a URL, or all datasets in the directory there.

    Raises:
        TokenFileError: There are none.
        RemoteError: The server does not answer or refuses the request.
    """
    if splitext(shown_url(url))[1] in (".bin", ".json"):
        files, names = open_files(directory_of(url)), [splitext(url_name(url))[0]]
    else:
        files = open_files(url)
        names = _names_in(files) or find_token_files(url)  # raises, for there are none
    return [finding for name in names for finding in _check_token_file(files, name, progress)]


def _names_in(files: Files) -> list[str]:
    """List NAME of the datasets in a directory, also of those whose manifests are damaged."""
    there = files.names()
    pairs = [x.removesuffix(".bin") for x in there if x.endswith(".bin")]
    stems = {re.sub(r"_\d{5,}$", "", x) for x in pairs if f"{x}.docs" in there}
    found = {*manifests_in(files), *map(manifest_name, stems)} - find_joined(files)
    return sorted(name.removesuffix(".json") for name in found)


def _check_token_file(files: Files, name: str, progress: Progress) -> list[Finding]:
    where = files.where(manifest_name(name))
    content = files.get(manifest_name(name))
    if content is None:
        return [Finding(where, False, "there is no such manifest; check the URL")]
    try:
        manifest = Manifest.from_bytes(content, where)
    except TokenmillError as error:
        return [Finding(where, False, str(error).removeprefix(f"{where}: "))]
    is_sound, text = manifest_is_as_written(content), "the manifest is as it was written"
    if not is_sound:
        text = "the manifest was changed: its own digest differs; copy it there again"
    data = manifest.files(name)
    with progress.stage(f"verifying {name}", sum(file.n_bytes for file in data)) as stage:
        checked = [_check_file(files, file, stage) for file in data]
    if manifest.shards:
        agree = f"sizes and blocks of {len(manifest.shards):,} shards are as written"
        checked = [each for each in checked if not each.sound] or [Finding(where, True, agree)]
    return [Finding(where, is_sound, text), *checked, _check_tokenizer(files, manifest)]


def _check_file(files: Files, file: DataFile, stage: Stage) -> Finding:
    """Check the size and the blocks of a data file."""
    where, size = files.where(file.name), files.size(file.name)
    if size is None:
        return Finding(where, False, "missing, though its manifest is there")
    if size != file.n_bytes:
        text = f"{file.n_bytes:,} bytes are expected and {size:,} were found"
        return Finding(where, False, f"{text}; it was damaged or replaced")
    damaged, blocks = list[int](), range(len(file.digests))
    read = partial(_digest_block, files, file)
    with closing(run_in_order(blocks, lambda: read, _REQUESTS_AT_ONCE)) as digests:
        for number, digest in enumerate(digests):
            damaged += [number] if digest != file.digests[number] else []
            stage.advance(len(file.block(number)) * file.dtype.itemsize)
    if not damaged:
        return Finding(where, True, f"its size and all {len(blocks):,} blocks are as written")
    places = [f"{number} (from byte {number * table.BLOCK_BYTES:,})" for number in damaged]
    text = f"{len(damaged):,} of {len(blocks):,} blocks are damaged: {listed(places, _SHOWN)}"
    return Finding(where, False, text, tuple(damaged))


def _digest_block(files: Files, file: DataFile, number: int) -> str:
    start = number * table.BLOCK_BYTES
    try:
        content = files.read(file.name, start, min(start + table.BLOCK_BYTES, file.n_bytes))
    except CorpusError:  # it was changed meanwhile
        return ""
    return xxhash.xxh3_128_hexdigest(content)


def _check_tokenizer(files: Files, manifest: Manifest) -> Finding:
    """Compare the tokenizer beside a dataset with its fingerprint."""
    where, content = files.where(TOKENIZER_FILE), files.get(TOKENIZER_FILE)
    if not manifest.tokenizer_fingerprint or content is None:
        return Finding(where, True, "is not there, so it is not compared with the dataset")
    if hashlib.sha256(content).hexdigest() == manifest.tokenizer_fingerprint:
        return Finding(where, True, "its bytes have the fingerprint in the manifest")
    return Finding(where, False, "is not the tokenizer of the dataset, or was changed")
