"""Answers about all of a dataset: unusual documents, and its numbers, drawn as in a report."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess.check.report_numbers import measure
from preprocess.check.report_page import draw_sections
from preprocess.view.library import Answer, Library, ViewedDataset, ViewError

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_DRAWING = threading.Lock()  # settings of matplotlib are those of the process


def statistics(dataset: ViewedDataset) -> Answer:
    """List what is known so far of unusual documents: those with copies when the pass is over."""
    progress, scanned = dataset.progress(), dataset.scanned
    lists = {
        name: [
            {"document": number, "tokens": n_tokens, "bytes": n_bytes, "repeats": n_repeats}
            for number, n_tokens, n_bytes, n_repeats in extremes.rows.tolist()
        ]
        for name, extremes in (
            ("longest", scanned.longest), ("worst", scanned.worst),
            ("repetitive", scanned.repetitive),
        )
    }  # fmt: skip
    copies = dataset.scanning.result() if progress["over"] and not progress["error"] else []
    return progress | lists | {"copies": copies}


def numbers(library: Library, dataset: ViewedDataset) -> Answer:
    """Return progress of the passes over a dataset and its train or validation, if that is shown.

    When they are over, `html` has the sections of a report on both, and `lengths` those of a report
    on the dataset.
    """
    path = Path(dataset.file.absolute_path).with_suffix("")
    ends = ("train", "val") if path.name.endswith("train") else ("val", "train")
    other = path.with_name(path.name.removesuffix(ends[0]) + ends[1])
    both = [dataset, *(
        x for x in library.datasets.values() if Path(x.file.absolute_path).with_suffix("") == other
    )]  # fmt: skip
    parts = [each.progress() for each in both]
    found: Answer = {name: sum(each[name] for each in parts) for name in ("done", "total")}
    found["over"] = all(each["over"] for each in parts)
    found["error"] = next((each["error"] for each in parts if each["error"]), "")
    if not found["over"] or found["error"]:
        return found
    with _DRAWING:
        return found | _draw(*both)


@functools.lru_cache(8)
def _draw(*datasets: ViewedDataset) -> Answer:
    of = {Path(each.file.path).stem: each for each in datasets}

    def load(name: str) -> tuple[str, AnyTokenizer]:
        if (tokenizer := of[name].tokenizer) is None:
            raise ViewError(of[name].no_tokenizer)
        return tokenizer.location, tokenizer.tokenizer

    found = measure({name: each.scanned for name, each in of.items()}, load)
    for each in found["datasets"]:
        each.pop("decoded", None)  # *Documents* shows them
    # Text of the dataset is escaped, so these are attributes; the page's policy allows none.
    html = draw_sections(found).replace(' style="', ' data-style="')
    return {"html": html, "lengths": found["datasets"][0]["lengths"]}
