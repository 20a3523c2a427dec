"""Tell where tokens are from: document, source, the text around, masks."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.places import Sources, shown_source
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids, tokenizer_of
from preprocess.options import WhereSettings
from preprocess.run.outputs import open_one
from preprocess.settings import takes

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]

_AROUND = 16  # tokens that are shown before and after a place
_OF_DOCUMENT = 200  # tokens of a document that are shown


def describe_places(
    file: TokenFile, tokenizer: AnyTokenizer | None, places: NDArray[np.int64]
) -> list[Facts]:
    """Describe places of a dataset, with the text around them.

    Args:
        file: The dataset.
        tokenizer: Of the dataset; without it there is no text.
        places: int64[n, 5]: first token, token after the last, document, and its first token and
            that after its last.

    Returns:
        For JSON: `token`, `stop`, `document`, `source`, None if unknown; with a tokenizer the text
        `before`, of (`match`) and `after` the tokens.
    """
    sources = Sources(file).describe(places[:, 2])
    found = [
        {"token": first, "stop": stop, "document": number, "source": source}
        for (first, stop, number, *_), source in zip(places.tolist(), sources, strict=True)
    ]
    if tokenizer is not None:
        first, stop, _, start, end = places.T
        edges = [np.maximum(start, first - _AROUND), first, stop, np.minimum(end, stop + _AROUND)]
        spans = np.stack(edges, axis=1)
        pieces = [read_ids(file, span[0], span[3]) for span in spans.tolist()]
        ids = np.concatenate([file.tokens[:0], *pieces])
        texts = iter(_decode_spans(tokenizer, ids, np.diff(spans, axis=1).ravel()))
        for each in found:
            each |= zip(("before", "match", "after"), texts, strict=False)
    return found


def _decode_spans(tokenizer: AnyTokenizer, ids: Any, sizes: NDArray[np.int64]) -> list[str]:
    """Return the texts of consecutive spans of so many ids."""
    from bpe import Tokenizer

    ends = np.append(0, np.cumsum(sizes))
    if not isinstance(tokenizer, Tokenizer):
        return [tokenizer.decode(ids[start:stop]) for start, stop in pairwise(ends.tolist())]
    content = tokenizer.decode_bytes(ids)
    lengths = tokenizer.vocabulary.flat_by_id[2]
    ends = np.append(0, np.cumsum(lengths[ids]))[ends]
    return [
        content[start:stop].decode("utf-8", "replace") for start, stop in pairwise(ends.tolist())
    ]


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
    if (token := settings.token) is not None:
        check_number(str(file.path), "token", token, file.n_tokens)
        document = document_at(file, token)
    else:
        document = settings.document or 0
        check_number(str(file.path), "document", document, file.n_documents)
    start, stop = read_bounds(file, document, document + 1).tolist()
    first, last = (start, min(stop, start + _OF_DOCUMENT)) if token is None else (token, token + 1)
    tokenizer = None
    if settings.tokenizer or file.has_tokenizer:
        tokenizer = tokenizer_of(file, settings.tokenizer)
    (place,) = describe_places(file, tokenizer, np.array([[first, last, document, start, stop]]))
    place |= {"of_document": [start, stop], "ids": file[first:last].tolist()}
    if file.has_mask:
        place["mask"] = np.asarray(file.loss_mask[first:last]).tolist()
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
        lines += [f"  {text!r}" for _, text in each.get("texts", ())]
    return lines
