"""Describe a build before it is run: what is read and written, and its first documents."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from bpe.text.spans import iter_ranges
from preprocess.options import BuildSettings
from preprocess.report.progress import amount
from preprocess.report.summary import format_skipped, format_tokenizer, listed
from preprocess.run.memory_limit import apply_profile, expected_memory, fit_to_memory
from preprocess.run.plan import Plan, copies_of_tokens, estimate_text, estimate_tokens
from preprocess.run.reading import Pass, load_given_tokenizer
from preprocess.settings import takes
from preprocess.sources.standard_input import has_standard_input
from preprocess.storage import Files, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DOCUMENTS = 3
_SHOWN_CHARACTERS, _SHOWN_TOKENS, _SHOWN_OF_CONVERSATION = 100, 40, 200


@takes(BuildSettings)
def preview_build(settings: BuildSettings) -> list[str]:
    """Describe what `build` with the same options would do, and write nothing.

    Raises:
        TokenmillError: As `build`.
    """
    if settings.config is None:
        return _preview(fit_to_memory(apply_profile(settings)))
    from preprocess.config import read_corpus

    config, lines = read_corpus(settings), list[str]()
    if config.training is not None:
        names = listed([*config.untrained], 5)
        lines.append(f"{config.tokenizer_file}: is trained on the datasets {names}")
    for name, each in config.builds.items():
        described = _preview(fit_to_memory(apply_profile(each)))
        lines += [f"dataset {name}:", *(f"  {line}" for line in described)]
    return lines


def _preview(settings: BuildSettings) -> list[str]:
    """Describe the build of one dataset."""
    given: AnyTokenizer | None = None
    if settings.tokenizer is not None:
        given = load_given_tokenizer(settings)
    plan = Plan(settings, given)
    lines = []
    for part in plan.passes:
        names = listed([source.name for source in part.recorded])
        n_bytes = sum(source.n_bytes for source in part.recorded)
        files = f"{len(part.recorded):,} file{'s' * (len(part.recorded) != 1)}"
        lines.append(f"{' and '.join(part.names)}: {files}, {n_bytes:,} bytes: {names}")
        if part.binary_files:
            lines.append(format_skipped(part.binary_files))
    lines.append(f"tokenizer: {format_tokenizer(given) if given else 'to be trained'}")
    if any(has_standard_input(part.files) for part in plan.passes):
        return [*lines, "standard input is read by the run, so nothing is known of it"]
    lines += [*_describe_outputs(plan, given), _describe_memory(settings)]
    for part in plan.passes:
        lines += _describe_documents(part, settings, given)
        if given is not None:
            lines += _describe_conversations(part, given)
    return lines


def _describe_outputs(plan: Plan, tokenizer: AnyTokenizer | None) -> Iterator[str]:
    """Describe the outputs, their place, and what is there already."""
    directory = plan.place
    n_tokens, per_token = estimate_tokens(plan, estimate_text(plan), tokenizer)
    n_work = n_tokens * (copies_of_tokens(plan) - 1)
    names = listed([f"{name}.bin" for name in plan.names.values()])
    most = "at most " if plan.settings.limits else ""
    yield (
        f"output: {names} in {directory}, {most}about {amount(n_tokens)}"
        f" ({per_token:.1f} bytes of text per token)"
    )
    if n_work:
        yield f"work files: {most}{amount(n_work)} in {directory}, until the end of the run"
    place = Path(gettempdir() if isinstance(directory, str) else directory).absolute()
    while not place.is_dir():
        place = place.parent
    yield f"disk: {amount(open_storage(place).space()[0])} are free in {place}"
    files: Files = open_storage(plan.directory).final
    there = [name for name in plan.names.values() if files.size(f"{name}.json") is not None]
    if there:
        yield f"exists: {listed([f'{name}.bin' for name in there])} (--overwrite replaces it)"


def _describe_memory(settings: BuildSettings) -> str:
    more = ""
    if settings.tokenizer is None and settings.memory_limit is None:
        more = ", and counts of pre-tokens that grow with the text"
    return (
        f"memory: at most {expected_memory(settings) / 1e6:,.0f} MB with {settings.workers:,}"
        f" workers and units of {settings.unit_size:,} bytes{more}"
    )


def _describe_documents(
    part: Pass, settings: BuildSettings, tokenizer: AnyTokenizer | None
) -> Iterator[str]:
    """Show the first documents of a pass, with their tokens if the tokenizer is known."""
    name = next(iter(part.names))
    for number, text in enumerate(islice(_first_documents(part), _DOCUMENTS)):
        shown = text[:_SHOWN_CHARACTERS]
        found = f": {_shown(shown)}{'...' * (len(text) > len(shown))}"
        if tokenizer is not None:
            ids = tokenizer.encode_ordinary(text)
            pieces = token_texts(ids[:_SHOWN_TOKENS], tokenizer)
            found = f", {len(ids):,} tokens: {'|'.join(pieces)}{'...' * (len(ids) > len(pieces))}"
        yield f"{name}, document {number}: {len(text):,} characters{found}"
    if settings.selects or settings.shuffle_documents is not None:
        yield f"{name}: documents are shown in the order of the files, before they are selected"


def _describe_conversations(part: Pass, tokenizer: AnyTokenizer) -> Iterator[str]:
    """Show the first conversations of a pass: their tokens, and which are trained on."""
    from preprocess.documents.chat_tokens import ConversationEncoder

    batches = (unit.read() for source in part.files if source.has_spans for unit in source.units())
    encoder, number = None, 0
    for batch in batches:
        encoder = ConversationEncoder(tokenizer) if encoder is None else encoder
        ids, offsets, mask = encoder.encode(tokenizer.new_encoder(), batch, -1, -1)
        for start, stop in pairwise(offsets.tolist()):
            end = min(stop, start + _SHOWN_OF_CONVERSATION)
            tokens = _marked(ids[start:end].tolist(), mask[start:end].tolist(), tokenizer)
            yield (
                f"{next(iter(part.names))}, conversation {number}: {stop - start:,} tokens,"
                f" {int(mask[start:stop].sum()):,} of them trained on:"
                f" {tokens}{'...' * (end < stop)}"
            )
            number += 1
            if number == _DOCUMENTS:
                return


def _marked(ids: list[int], mask: list[int], tokenizer: AnyTokenizer) -> str:
    """Return tokens divided by bars; those trained on are green on a terminal, else in [[ ]]."""
    has_colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    begin, end = ("\x1b[32m", "\x1b[0m") if has_colour else ("[[", "]]")
    parts = []
    for trained, group in groupby(zip(mask, ids, strict=True), key=itemgetter(0)):
        text = "|".join(token_texts([i for _, i in group], tokenizer))
        parts.append(f"{begin}{text}{end}" if trained else text)
    return "|".join(parts)


def token_texts(ids: list[int], tokenizer: AnyTokenizer) -> list[str]:
    """Return the text of each token, as it is shown."""
    tokens = (tokenizer.decode_bytes([i]) for i in ids)
    return [_shown(token.decode("utf-8", "backslashreplace")) for token in tokens]


def _shown(text: str) -> str:
    """Return text in one line, with escapes for characters that are not printable."""
    return "".join(x if x.isprintable() else repr(x)[1:-1] for x in text)


def _first_documents(part: Pass) -> Iterator[str]:
    """Yield the documents of a pass, before they are selected; of a divided one, its first part."""
    for source in part.files:
        # Those with spans are shown by `_describe_conversations`.
        for unit in () if source.has_spans else source.units():
            batch = unit.read()
            for start, end in iter_ranges(batch.bounds[2 * batch.starts_mid_document :]):
                yield batch.buffer[start:end].tobytes().decode()
