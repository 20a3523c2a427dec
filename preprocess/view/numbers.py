"""The numbers of a dataset, and of its validation or train beside it, drawn as in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bpe.errors import TokenmillError
from bpe.parallel import Task, start_thread
from preprocess.check.inspect import describe_tokenizer
from preprocess.check.report_numbers import (
    compare_datasets,
    find_run,
    measure_counts,
    measure_text,
)
from preprocess.check.report_page import draw_sections
from preprocess.view.documents import ViewedDataset
from preprocess.view.statistics import Statistics
from preprocess.view.vocabulary import Answer


class Numbers:
    """Numbers of datasets, computed on a thread of its own once their passes are over.

    Args:
        datasets: The dataset, and its validation or train.
        statistics: Of each.
    """

    def __init__(self, datasets: Sequence[ViewedDataset], statistics: Sequence[Statistics]) -> None:
        self._datasets, self._statistics = datasets, statistics
        self._task: Task[Answer] = Task(self._compute)
        start_thread(self._task.run)

    def answer(self) -> Answer:
        """Return `html` and `lengths` of the first dataset, when they are there, and progress."""
        parts = [each.progress() for each in self._statistics]
        error = next((each["error"] for each in parts if each["error"]), "")
        found = {name: sum(each[name] for each in parts) for name in ("done", "total")}
        found |= {"over": self._task.is_done, "error": error}
        if not self._task.is_done:
            return found
        return found | self._task.result()

    def _compute(self) -> Answer:
        for each in self._statistics:
            each.wait()
        if any(each.error for each in self._statistics):
            return {}
        measured, scans, runs = list[Answer](), {}, dict[str, Any]()
        tokenizers: dict[str, Any] = {}
        for viewed, statistics in zip(self._datasets, self._statistics, strict=True):
            name = Path(viewed.file.path).stem
            scans[name] = statistics.scanned
            measured.append(measure_counts(name, statistics.scanned))
            runs |= find_run(viewed.file)
            if viewed.tokenizer is None:
                measured[-1]["no_text"] = viewed.no_tokenizer
                continue
            tokenizers[viewed.file.manifest.tokenizer_fingerprint] = viewed.tokenizer
            try:
                measured[-1] |= measure_text(statistics.scanned, viewed.tokenizer.tokenizer, None)
            except TokenmillError as error:
                measured[-1]["no_text"] = str(error)
            measured[-1].pop("decoded", None)  # *Documents* shows them
        known = {fingerprint: each.tokenizer for fingerprint, each in tokenizers.items()}
        found = {
            "datasets": measured, "val_in_train": compare_datasets(scans, known), "beside": None,
            "runs": [*runs.values()], "tokenizers": [
                describe_tokenizer(Path(each.location), each.tokenizer)
                for each in tokenizers.values()
            ],
        }  # fmt: skip
        # Text of the dataset is escaped, so these are attributes; the page's policy allows none.
        html = draw_sections(found).replace(' style="', ' data-style="')
        return {"html": html, "lengths": measured[0]["lengths"]}


def with_partner(viewed: ViewedDataset, among: Mapping[str, ViewedDataset]) -> list[str]:
    """Return the name of a dataset, and that of its train or validation in the same directory."""
    path = Path(viewed.file.absolute_path).with_suffix("")
    ends = ("train", "val") if path.name.endswith("train") else ("val", "train")
    other = path.with_name(path.name.removesuffix(ends[0]) + ends[1])
    return [viewed.name, *(
        name for name, each in among.items()
        if Path(each.file.absolute_path).with_suffix("") == other and each is not viewed
    )]  # fmt: skip
