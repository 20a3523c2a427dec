"""Tokens of held-out text for every size of a vocabulary, from one training and one encoding.

The text is encoded with the largest vocabulary, in which `bpe.train.prefixes` finds the numbers of
tokens of all smaller ones; they are those of a `build` of each size.

A model has 12 * layers * width**2 weights, and vocab_size * width more for its output; a token
takes a multiply-add for each. A larger vocabulary makes fewer tokens, and each costs more: the size
with the least multiply-adds per byte of text is chosen, of equal ones the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import IDS
from preprocess.documents.batch import DocumentBatch
from preprocess.options import AUTO, VOCABULARY_SIZES, BuildSettings, TrainFileSettings
from preprocess.report.progress import Progress, logger
from preprocess.report.summary import Report, check_has_documents
from preprocess.run.compiling import compile_encoding
from preprocess.run.encode_pass import Encoded, EncodePass, SpecialIds
from preprocess.run.reading import Pass

if TYPE_CHECKING:
    from bpe import Tokenizer

_OUTPUT = "held-out text"


class HeldOutPass(EncodePass):
    """Pass that encodes the validation documents of sources, and counts their ids."""

    def count_ids(self) -> NDArray[np.int64]:
        """Return how often each id occurs: int64[vocab_size]; other counts are in the report."""
        self._id_counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        self._restore([_OUTPUT])
        self._encode({})
        return self._id_counts

    def _divide(self, batch: DocumentBatch) -> list[DocumentBatch]:
        return super()._divide(batch)[-1:]

    def _append(self, index: int, result: Encoded, writers: Any) -> None:
        super()._append(index, result, writers)
        (part,) = result.parts
        self.report.outputs[_OUTPUT].add(part.counts)
        ids = part.columns[IDS.name]
        self._id_counts += np.bincount(ids, minlength=len(self._id_counts))


def measure_curve(
    part: Pass, settings: BuildSettings | TrainFileSettings, tokenizer: Tokenizer,
    progress: Progress, sizes: Iterable[int], width: int, layers: int,
) -> dict[str, Any]:
    """Encode the validation documents of a pass with the largest vocabulary, and compare sizes.

    Args:
        part: The pass.
        settings: Settings of the run.
        tokenizer: The largest, as `train_tokenizer` gives it. Larger sizes are its size.
        progress: Shows the encoding.
        sizes: Bytes, merges and special tokens together.
        width: Of the model.
        layers: Of the model.

    Returns:
        What `preprocess.vocab_curve` returns.

    Raises:
        CorpusError: Text cannot be read, or no document is held out.
    """
    from bpe.train.prefixes import tokens_of_prefixes

    compile_encoding(tokenizer, progress)
    report, ids = Report(), SpecialIds.of(tokenizer, settings)
    encoding = HeldOutPass(part, settings, tokenizer, report, progress, ids=ids)
    id_counts = encoding.count_ids()
    text = report.outputs[_OUTPUT]
    check_has_documents("val", part.sources, text.documents, text.documents, report.left_out)
    tokens = tokens_of_prefixes(tokenizer, id_counts)
    n_others = tokenizer.vocab_size - len(tokens) + 1  # ids that are no merges
    known = {min(max(size, n_others), tokenizer.vocab_size) for size in sizes}
    points = [
        _describe_size(size, int(tokens[size - n_others]), text.bytes, width, layers)
        for size in sorted(known)
    ]
    best = min(points, key=lambda each: each["multiply_adds_per_byte"])
    return {
        "text": {"documents": text.documents, "bytes": text.bytes}, "width": width,
        "layers": layers, "sizes": points, "vocab_size": best["vocab_size"],
        "reason": _reason(best, points, width, layers),
    }


def _describe_size(
    size: int, n_tokens: int, n_bytes: int, width: int, layers: int
) -> dict[str, Any]:
    """Describe the text with a vocabulary of a size, and the embedding of the model."""
    embedding, others = size * width, 12 * layers * width**2
    return {
        "vocab_size": size, "tokens": n_tokens, "bytes_per_token": n_bytes / n_tokens,
        "embedding_parameters": embedding, "embedding_share": embedding / (embedding + others),
        "untied_share": 2 * embedding / (2 * embedding + others),
        "multiply_adds_per_byte": n_tokens * (others + embedding) / n_bytes,
    }


def _reason(
    best: dict[str, Any], points: Sequence[dict[str, Any]], width: int, layers: int
) -> str:
    """Return why a size is recommended, and what the next ones take."""
    sizes, costs = ([each[x] for each in points] for x in ("vocab_size", "multiply_adds_per_byte"))
    place = points.index(best)
    reason = (
        f"{sizes[place]:,} tokens: of the sizes from {sizes[0]:,} to {sizes[-1]:,}, the least"
        f" compute per byte of held-out text for {layers:,} layers of width {width:,}, which is"
        " tokens per byte x (12 x layers x width^2 + size x width)"
    )
    for other in (place - 1, place + 1):
        if 0 <= other < len(points):
            more = costs[other] / costs[place] - 1
            reason += f"; {sizes[other]:,} take {more:.1%} more"
    return reason


def choose_size(
    tokenizer: Tokenizer, part: Pass, settings: BuildSettings | TrainFileSettings,
    progress: Progress,
) -> Tokenizer:
    """Return the tokenizer of the recommended size if the settings leave it to the text.

    Arguments are those of `measure_curve`.
    """
    from bpe.train.prefixes import cut_vocabulary

    if settings.vocab_size != AUTO:
        return tokenizer
    sizes, width, layers = VOCABULARY_SIZES, settings.width, settings.layers
    found = measure_curve(part, settings, tokenizer, progress, sizes, width, layers)
    logger.info("vocabulary: %s", found["reason"])
    return cut_vocabulary(tokenizer, found["vocab_size"])
