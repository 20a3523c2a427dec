"""Tokens of held-out text for every size of a vocabulary, from one training and one encoding.

The text is encoded with the largest vocabulary, in which `bpe.train.prefixes` finds the numbers of
tokens of all smaller ones; they are those of a `build` of each size.

A model has 12 * layers * width**2 weights, and vocab_size * width more for its output; a token
takes a multiply-add for each. A larger vocabulary makes fewer tokens, and each costs more: the size
with the least multiply-adds per byte of text is chosen, of equal ones the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from preprocess.dataset.columns import IDS
from preprocess.documents.batch import DocumentBatch
from preprocess.options import AUTO, VOCABULARY_SIZES, BuildSettings, TrainFileSettings
from preprocess.report.progress import Progress, logger
from preprocess.report.summary import Counts, Report, check_has_documents
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


class SizePoint(Struct, frozen=True):
    """One size of a vocabulary.

    Attributes:
        vocab_size: Bytes, merges and special tokens together.
        tokens: Number of tokens of the text, with the special ids around documents.
        bytes_per_token: Bytes of the text per token.
        embedding_parameters: Weights of the embedding, vocab_size * width.
        embedding_share: Their share of the model, whose output has the same weights.
        untied_share: Share of embedding and output of the model if the output has its own.
        multiply_adds_per_byte: Of the weights, in a forward pass, per byte of the text.
    """

    vocab_size: int
    tokens: int
    bytes_per_token: float
    embedding_parameters: int
    embedding_share: float
    untied_share: float
    multiply_adds_per_byte: float


class VocabCurve(NamedTuple):
    """Tokens of held-out text by the size of the vocabulary.

    Attributes:
        text: Documents, bytes, and tokens with the largest vocabulary.
        tokens: int64[n_merges + 1], the number of tokens with the first n merges.
        n_others: Number of ids that are no merges.
    """

    text: Counts
    tokens: NDArray[np.int64]
    n_others: int

    def points(self, sizes: Iterable[int], width: int, layers: int) -> list[SizePoint]:
        """Return the points of sizes, in ascending order.

        Training gave no more merges than there are, so larger sizes are one point, the last.
        """
        most = self.n_others + len(self.tokens) - 1
        known = {min(max(size, self.n_others), most) for size in sizes}
        return [self._point(size, size * width, 12 * layers * width**2) for size in sorted(known)]

    def _point(self, size: int, embedding: int, others: int) -> SizePoint:
        """Return the point of a size, and of a model with so many weights."""
        tokens, n_bytes = int(self.tokens[size - self.n_others]), self.text.bytes
        return SizePoint(
            size, tokens, n_bytes / tokens, embedding, embedding / (embedding + others),
            2 * embedding / (2 * embedding + others), tokens * (others + embedding) / n_bytes,
        )


def measure_curve(
    part: Pass, settings: BuildSettings | TrainFileSettings, tokenizer: Tokenizer,
    progress: Progress,
) -> VocabCurve:
    """Encode the validation documents of a pass with the largest vocabulary.

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
    return VocabCurve(text, tokens, tokenizer.vocab_size - len(tokens) + 1)


def recommend(points: list[SizePoint], width: int, layers: int) -> tuple[SizePoint, str]:
    """Return the point of the least compute per byte, and why it is recommended."""
    best = min(points, key=lambda each: (each.multiply_adds_per_byte, each.vocab_size))
    others = []
    for before, after in pairwise(points):
        if best in (before, after):
            other = after if best is before else before
            more = other.multiply_adds_per_byte / best.multiply_adds_per_byte - 1
            others.append(f"{other.vocab_size:,} take {more:.1%} more")
    reason = (
        f"{best.vocab_size:,} tokens: of the sizes from {points[0].vocab_size:,} to"
        f" {points[-1].vocab_size:,}, the least compute per byte of held-out text for {layers:,}"
        f" layers of width {width:,}, which is tokens per byte x (12 x layers x width^2 + size x"
        " width)"
    )
    return best, "; ".join([reason, *others])


def choose_size(
    tokenizer: Tokenizer, part: Pass, settings: BuildSettings | TrainFileSettings,
    progress: Progress,
) -> Tokenizer:
    """Return the tokenizer of the recommended size if the settings leave it to the text.

    Args:
        tokenizer: As `train_tokenizer` gives it.
        part: The pass that has the validation documents.
        settings: Settings of the run.
        progress: Shows the encoding.
    """
    from bpe.train.prefixes import cut_vocabulary

    if settings.vocab_size != AUTO:
        return tokenizer
    curve = measure_curve(part, settings, tokenizer, progress)
    points = curve.points(VOCABULARY_SIZES, settings.width, settings.layers)
    best, reason = recommend(points, settings.width, settings.layers)
    logger.info("vocabulary: %s", reason)
    return cut_vocabulary(tokenizer, best.vocab_size)
