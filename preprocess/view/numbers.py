"""The numbers of a dataset, and of its validation or train beside it, drawn as in a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bpe.parallel import Task, start_thread
from preprocess.check.report_numbers import Measurements
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
        measured = Measurements()
        for viewed, statistics in zip(self._datasets, self._statistics, strict=True):
            name = Path(viewed.file.path).stem
            measured.add(name, statistics.scanned, viewed.location_and_tokenizer)
        found = measured.facts()
        for each in found["datasets"]:
            each.pop("decoded", None)  # *Documents* shows them
        # Text of the dataset is escaped, so these are attributes; the page's policy allows none.
        html = draw_sections(found).replace(' style="', ' data-style="')
        return {"html": html, "lengths": found["datasets"][0]["lengths"]}


def with_partner(viewed: ViewedDataset, among: Mapping[str, ViewedDataset]) -> list[str]:
    """Return the name of a dataset, and that of its train or validation in the same directory."""
    path = Path(viewed.file.absolute_path).with_suffix("")
    ends = ("train", "val") if path.name.endswith("train") else ("val", "train")
    other = path.with_name(path.name.removesuffix(ends[0]) + ends[1])
    return [viewed.name, *(
        name for name, each in among.items()
        if Path(each.file.absolute_path).with_suffix("") == other and each is not viewed
    )]  # fmt: skip
