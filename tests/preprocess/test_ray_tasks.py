"""Number of units in a task of Ray."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import fake_ray
import format_files
import pytest
from ray_cases import Unit, pairs

from preprocess.documents.batch import ReadOptions
from preprocess.run.ray import RayExecutor
from preprocess.sources import find_sources


def sizes_of_tasks(units: list[Unit], is_apart: bool) -> list[int]:
    """Run units, and return the number of units of each task."""
    executor, sizes = RayExecutor(fake_ray.fake_ray(), 2, {}), list[int]()
    executor.actors.start()
    submit = executor._submit

    def noted(task: Any, actor: Any) -> None:
        sizes.append(len(task.units))
        submit(task, actor)

    executor._submit = noted  # type: ignore[method-assign]
    with closing(executor.run_tasks(units, pairs, is_apart)) as results:
        numbers = [unit.number for unit in units]
        assert [each for each, *_ in results] == [i if is_apart else (i, i) for i in numbers]
    return sizes


@pytest.mark.parametrize(("is_apart", "most"), [(True, 16), (False, 32)])
def test_tasks_have_more_units_after_a_while(is_apart: bool, most: int) -> None:
    sizes = sizes_of_tasks([Unit(number) for number in range(999)], is_apart)
    assert sizes[:16] == [1] * 16
    assert (sizes[:-1], sizes[-2]) == (sorted(sizes[:-1]), most)


@pytest.mark.parametrize("is_apart", [True, False])
def test_tasks_have_little_text(is_apart: bool) -> None:
    sizes = sizes_of_tasks([Unit(number, n_held=2**23) for number in range(200)], is_apart)
    assert max(sizes) == 4


@pytest.mark.parametrize("suffix", ["txt", "jsonl", "txt.gz", "jsonl.zst"])
def test_units_know_how_much_text_they_have(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS)
    (source,) = find_sources([path], ReadOptions(unit_size=500))
    units = list(source.units())
    held = sum(unit.n_held for unit in units)
    whole = tmp_path / f"corpus.{suffix.split('.')[0]}"
    format_files.write(whole, format_files.DOCUMENTS)
    assert held == (whole.stat().st_size if "." in suffix else 0)
