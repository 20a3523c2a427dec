"""Whether token files are what their manifests say, down to the block that is damaged.

Law: a file is called sound only if every byte of it was read and agrees with the manifest, every id
with the vocabulary, and every document with its end. Nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpe.errors import EncodingError, TokenbinError
from preprocess.inspect import manifests_in, tokenizer_of
from preprocess.progress import Progress, Stage
from preprocess.token_file import (
    BLOCK_BYTES,
    TokenFile,
    TokenFileError,
    block_digests,
    open_tokens,
)

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 22
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
    """

    path: Path
    sound: bool
    text: str

    def line(self) -> str:
        """For people."""
        return f"{'ok     ' if self.sound else 'DAMAGED'}  {self.path}: {self.text}"


def verified(
    path: Path, tokenizer_path: Path | None = None, progress: Progress | None = None
) -> list[Finding]:
    """Check one token file, or all in a directory, against their manifests.

    Args:
        path: A .bin, a manifest or a directory.
        tokenizer_path: The tokenizer they were built with; None: tokenizer.json beside each.
        progress: Shows what goes on.

    Raises:
        TokenFileError: There is nothing to check.
    """
    paths = manifests_in(path) if path.is_dir() else [path]
    if not paths:
        raise TokenFileError(f"{path}: no finished token file in this directory; build one first")
    if not paths[0].exists():
        raise TokenFileError(f"{path}: no such file or directory; check the path")
    progress = progress or Progress()
    return [finding for each in paths for finding in _of_token_file(each, tokenizer_path, progress)]


def _of_token_file(path: Path, tokenizer_path: Path | None, progress: Progress) -> list[Finding]:
    try:
        file = open_tokens(path)
    except TokenbinError as error:
        return [_damage(path, error)]
    findings = [
        Finding(
            file.path,
            True,
            f"sizes agree with the manifest: {file.n_tokens:,} tokens ({file.dtype.name}),"
            f" {file.n_documents:,} documents",
        ),
        _of_blocks(file.path, file.manifest.bin_digests),
        _of_blocks(file.path.with_suffix(".docs"), file.manifest.docs_digests),
    ]
    with progress.stage(f"verifying {file.path.name}", len(file), "tokens") as stage:
        findings.append(_of_ids(file, stage))
    findings.append(_of_ends(file))
    try:
        tokenizer = tokenizer_of(file.path, tokenizer_path)
        open_tokens(path, tokenizer=tokenizer)
    except TokenbinError as error:
        return [*findings, _damage(file.path, error)]
    if all(finding.sound for finding in findings):
        findings.append(_of_sample(file, tokenizer))
    return findings


def _damage(path: Path, error: TokenbinError) -> Finding:
    return Finding(path, False, str(error).removeprefix(f"{path}: "))


def _of_blocks(path: Path, expected: tuple[str, ...]) -> Finding:
    found = block_digests(path)
    damaged = [
        number
        for number, digests in enumerate(zip(found, expected, strict=True))
        if digests[0] != digests[1]
    ]
    if not damaged:
        return Finding(path, True, f"all {len(expected):,} blocks have their digests")
    places = ", ".join(
        f"{number} (from byte {number * BLOCK_BYTES:,})" for number in damaged[:_SHOWN]
    )
    more = f" and {len(damaged) - _SHOWN:,} more" if len(damaged) > _SHOWN else ""
    return Finding(
        path, False, f"{len(damaged):,} of {len(expected):,} blocks are damaged: {places}{more}"
    )


def _of_ids(file: TokenFile, stage: Stage) -> Finding:
    """Every id is below the vocabulary size, and end-of-text ids are as many as documents."""
    n_ends = 0
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        ids = file.tokens[start : start + _TOKENS_AT_A_TIME]
        too_large = np.flatnonzero(ids >= file.vocab_size)
        if len(too_large):
            place = int(too_large[0])
            return Finding(
                file.path,
                False,
                f"token {start + place:,} is {int(ids[place])}, and the vocabulary has"
                f" {file.vocab_size:,} ids",
            )
        n_ends += int(np.count_nonzero(ids == file.manifest.end_of_text_id))
        stage.advance(len(ids))
    if n_ends != file.n_documents:
        return Finding(
            file.path,
            False,
            f"{n_ends:,} end-of-text ids ({file.manifest.end_of_text_id}) for {file.n_documents:,}"
            " documents: as many are expected",
        )
    return Finding(file.path, True, f"every id is below {file.vocab_size:,}")


def _of_ends(file: TokenFile) -> Finding:
    """Document ends rise, stand behind end-of-text ids, and the last is the number of tokens."""
    path = file.path.with_suffix(".docs")
    ends = file.document_ends.astype(np.int64)
    starts = np.append(0, ends[:-1])
    not_rising = np.flatnonzero(ends <= starts)
    if len(not_rising):
        place = int(not_rising[0])
        return Finding(
            path, False, f"document {place:,} ends at {ends[place]:,}, which is not past its start"
        )
    last = int(ends[-1]) if len(ends) else 0
    if last != len(file):
        return Finding(
            path, False, f"the last document ends at {last:,}, and there are {len(file):,} tokens"
        )
    wrong = np.flatnonzero(file.tokens[ends - 1] != file.manifest.end_of_text_id)
    if len(wrong):
        place = int(wrong[0])
        return Finding(
            path,
            False,
            f"document {place:,} ends at {ends[place]:,} without the end-of-text id"
            f" {file.manifest.end_of_text_id}",
        )
    begin = file.manifest.begin_of_text_id
    if begin is not None and (file.tokens[starts] != begin).any():
        place = int(np.flatnonzero(file.tokens[starts] != begin)[0])
        return Finding(
            path, False, f"document {place:,} does not begin with the begin-of-text id {begin}"
        )
    return Finding(path, True, f"all {len(ends):,} documents end on end-of-text ids")


def _of_sample(file: TokenFile, tokenizer: AnyTokenizer) -> Finding:
    """Documents from the first to the last are decoded, and encoded to the same ids.

    What a tokenizer does not give back as it was need not encode to the same ids either.
    """
    manifest = file.manifest
    exact = _gives_text_back(tokenizer)
    names = {token_id: token for token, token_id in tokenizer.special_tokens.items()}
    if manifest.end_of_text_id not in names:
        return Finding(
            file.path,
            False,
            f"the end-of-text id {manifest.end_of_text_id} is no special token of the tokenizer",
        )
    ends = file.document_ends.astype(np.int64)
    starts = np.append(0, ends[:-1])
    chosen = np.unique(np.linspace(0, len(ends) - 1, _SAMPLE_DOCUMENTS).astype(np.int64))
    n_tokens = n_documents = 0
    begins = manifest.begin_of_text_id is not None
    for document in chosen.tolist() if len(ends) else []:
        ids = file[int(starts[document]) + begins : int(ends[document]) - 1]
        n_tokens += len(ids)
        if n_tokens > _SAMPLE_TOKENS:
            break
        try:
            text = tokenizer.decode_bytes(ids).decode()
        except UnicodeDecodeError as error:
            return Finding(file.path, False, f"document {document:,} is not UTF-8: {error.reason}")
        except EncodingError as error:
            return Finding(file.path, False, f"document {document:,} does not decode: {error}")
        if exact and tokenizer.encode_ordinary(text) != ids.tolist():
            return Finding(
                file.path, False, f"document {document:,} does not encode to its own ids again"
            )
        n_documents += 1
    again = (
        "and encode to the same ids again"
        if exact
        else "but not always to the very text, so they were not encoded again"
    )
    return Finding(file.path, True, f"{n_documents:,} documents decode, {again}")


def _gives_text_back(tokenizer: AnyTokenizer) -> bool:
    """Whether `decode(encode_ordinary(text)) == text` for every text."""
    from bpe import Tokenizer

    return (
        isinstance(tokenizer, Tokenizer)
        and not tokenizer.normal_forms
        and not any(token.lstrip or token.rstrip for token in tokenizer.vocabulary.added_tokens)
        # No space is put in front.
        and tokenizer.decode(tokenizer.encode_ordinary("x")) == "x"
    )
