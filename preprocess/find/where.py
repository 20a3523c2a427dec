"""Tell where tokens are from: document, source, the text around, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.places import shown_source, source_of
from preprocess.dataset.reader import (
    TokenFile,
    document_at,
    read_bounds,
    read_ids,
    tokenizer_of,
)
from preprocess.options import WhereSettings
from preprocess.run.outputs import open_one
from preprocess.settings import takes

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]

_AROUND = 16  # tokens that are shown before and after a place
_OF_DOCUMENT = 200  # tokens of a document that are shown


def describe_place(
    file: TokenFile, tokenizer: AnyTokenizer | None, first: int, stop: int, number: int
) -> Facts:
    """Describe tokens [first, stop), of document `number`, with the text around them.

    Returns:
        For JSON: `token`, `stop`, `document`, `source`, None if unknown; with a tokenizer the text
        `before`, of (`match`) and `after` the tokens.
    """
    start, end = read_bounds(file, number, number + 1).tolist()
    found: Facts = {
        "token": first, "stop": stop, "document": number, "source": source_of(file, number)
    }
    if tokenizer is not None:
        around = {"before": (max(start, first - _AROUND), first), "match": (first, stop),
                  "after": (stop, min(end, stop + _AROUND))}  # fmt: skip
        for name, span in around.items():
            content = tokenizer.decode_bytes(read_ids(file, *span))
            found[name] = content.decode("utf-8", "replace")
    return found


def check_number(name: str, noun: str, number: int, n: int) -> None:
    """Raise TokenFileError unless `name` has a token or document of this number, of n."""
    if not 0 <= number < n:
        raise TokenFileError(
            f"{name}: there is no {noun} {number:,}; its {n:,} {noun}s are numbered from 0"
        )


@takes(WhereSettings)
def where(settings: WhereSettings) -> Facts:
    """Tell which document and source a token, a document or the documents of a row are from.

    Options: docs/options.md or `tokenmill where --help`; docs/look.md has the keys.

    Raises:
        TokenFileError: There is not one dataset, it is damaged, or has no such token or document.
        SamplingError: The configuration does not work, or the step has no such row.
    """
    if settings.step is not None:
        from preprocess.find.steps import show

        how = {name: x for name, x in settings.given.items() if x is not None}
        (row,) = show(**{"rows": 1} | how)["rows"]
        return {"row": row["row"], "step": settings.step, "places": row["documents"]}
    file = open_one(settings.path or "")
    if settings.token is not None:
        number, noun, n = settings.token, "token", file.n_tokens
    else:
        number, noun, n = settings.document or 0, "document", file.n_documents
    check_number(str(file.path), noun, number, n)
    document = number if noun == "document" else document_at(file, number)
    start, stop = read_bounds(file, document, document + 1).tolist()
    span = (start, min(stop, start + _OF_DOCUMENT)) if noun == "document" else (number, number + 1)
    tokenizer = None
    if settings.tokenizer or file.has_tokenizer:
        tokenizer = tokenizer_of(file, settings.tokenizer)
    place = describe_place(file, tokenizer, span[0], span[1], document)
    place |= {"of_document": [start, stop], "ids": file[slice(*span)].tolist()}
    if file.has_mask:
        place["mask"] = np.asarray(file.loss_mask[slice(*span)]).tolist()
    return {"path": str(file.path), "places": [place]}


# --- text for people ---


def format_places(found: Facts) -> list[str]:
    """Format what `where` found."""
    lines = []
    for each in found["places"]:
        place = f"token {each['token']:,} of document {each['document']:,}"
        lines.append(f"{place}{shown_source(each['source'])}")
        if "of_document" in each:
            start, stop = each["of_document"]
            lines.append(f"  token {each['token'] - start:,} of {stop - start:,} of the document")
        if "mask" in each:
            n, n_all = sum(each["mask"]), len(each["mask"])
            lines.append(f"  {n:,} of {n_all:,} shown tokens are trained on")
        if "match" in each:
            lines.append(f"  {each['before']!r} [{each['match']!r}] {each['after']!r}")
        for _, text in each.get("texts", ()):
            lines.append(f"  {text!r}")
    return lines
