"""Checks of what a pass reads and yields: enough text, documents in each output, time left."""

from __future__ import annotations

from collections.abc import Sequence

from bpe.errors import CorpusError
from preprocess.progress import Progress, duration
from preprocess.report import LeftOut, listed
from preprocess.sources import Source


def out_of_time(progress: Progress, what_next: str) -> str:
    """Report each stage: the share that is done, its rate, and the time that all of it takes."""
    stages = []
    for stage in progress.stages:
        done, seconds = stage.done - stage.done_before, stage.seconds - stage.seconds_before
        share = stage.done / stage.total if stage.total else 1.0
        texts = [f"{stage.name} {share:.1%}"]
        if stage.unit == "B" and seconds:
            texts.append(f"{done / 1e6 / seconds:,.1f} MB/s")
        if share < 1 and done and seconds:
            texts.append(f"all of it takes about {duration(stage.total * seconds / done)}")
        stages.append(", ".join(texts))
    return f"the time is over ({'; '.join(stages)}); {what_next} when the same command runs again"


def check_has_text(sources: Sequence[Source], name: str) -> None:
    """Refuse sources of zero bytes altogether."""
    if not any(source.n_bytes for source in sources):
        raise CorpusError(
            f"{_names(sources)}: empty (0 bytes), so there is no text for {name}; give files that"
            " have some"
        )


def check_has_documents(
    name: str, sources: Sequence[Source], n_documents: int, n_everywhere: int, left_out: LeftOut
) -> None:
    """Refuse an output without documents, and say why it has none.

    Args:
        name: The output.
        sources: What is read for it.
        n_documents: Its documents.
        n_everywhere: Documents of the sources, whichever output they go to.
        left_out: What was dropped or skipped so far.
    """
    if n_documents:
        return
    if n_everywhere:
        raise CorpusError(
            f"{name} would have no documents: of the {n_everywhere:,} in {_names(sources)} none"
            " falls to it; give validation text (--val), choose another --val-fraction (0: no"
            " validation file), or see whether --separator is what stands between the documents"
        )
    raise CorpusError(
        f"{_names(sources)}: no document for {name}: {left_out.empty_documents:,} are empty and"
        f" {left_out.skipped_documents:,} are not UTF-8; give files that have text"
    )


def _names(sources: Sequence[Source]) -> str:
    return listed([source.name for source in sources])
