"""What is said of Ray where it is missing, or cannot be used; needs no Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preprocess import PipelineConfig, build
from preprocess.options import BuildSettings, resources_of
from preprocess.pipeline import train
from preprocess.run import parts
from preprocess.run.parts import RayError, connected
from preprocess.settings import SettingsError
from preprocess.storage import OutputError, open_storage


def test_without_ray_it_is_said_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "text").write_text("some text")
    options: dict[str, Any] = {"train": tmp_path / "text", "val_fraction": 0, "vocab_size": 257}
    with pytest.raises(RayError, match="executor ray needs Ray, which is not installed; install"):
        build(**options, out=tmp_path / "out", executor="ray")
    build(**options, out=tmp_path / "out")


@pytest.mark.parametrize(("address", "where"), [(None, "started on"), ("1.2.3.4:5", "reached at")])
def test_a_cluster_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, address: str | None, where: str
) -> None:
    given: dict[str, Any] = {}

    def init(**options: Any) -> None:
        given.update(options)
        raise ConnectionError("nobody is there")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(RayError, match=rf"Ray cannot be {where}.*: nobody is there") as caught:
        connected(2, address).__enter__()
    assert "; start a cluster (ray start --head), and" in str(caught.value)
    assert given["address"] == address or "local"
    assert given.get("include_dashboard", False) is False


def test_options_of_ray_need_ray() -> None:
    with pytest.raises(SettingsError, match="ray_address has no effect without executor='ray'; g"):
        BuildSettings(ray_address="auto")
    for wrong in ("CPU", {"CPU": "x"}, ["=2"], "CPU=2"):
        with pytest.raises(SettingsError, match="amounts of resources, such as CPU=2"):
            BuildSettings(executor="ray", ray_resources=wrong)
    found = BuildSettings(executor="ray", ray_resources={"CPU": 2, "x": 0.5})
    assert resources_of(found.ray_resources) == {"CPU": 2.0, "x": 0.5}
    datasets = [{"name": "x", "data_files": "x", "tokenizer": "t"}]
    for ray, expected in (
        (None, ("threads", None)), ({"enabled": False, "address": "auto"}, ("threads", None)),
        ({"num_workers": 3, "address": "auto", "resources_per_worker": {"CPU": 2}},
         ("ray", "auto")),
    ):  # fmt: skip
        build_of = PipelineConfig(datasets=datasets, ray=ray).plans["x"].build
        assert (build_of.executor, build_of.ray_address) == expected
    assert (build_of.workers, build_of.ray_resources) == (3, ("CPU=2",))


@pytest.mark.parametrize(("more", "message"), [
    ({"max_documents": 5}, "max_documents and executor were both given: Ray divides"),
    ({"train": "-"}, r"standard input \(-\) is not divided among tasks or workers of Ray"),
    ({"task_index": 0, "task_count": 2}, "both given: Ray makes all parts"),
])  # fmt: skip
def test_what_cannot_be_divided(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    (tmp_path / "text").write_text("some text")
    given = {"train": tmp_path / "text", "out": tmp_path / "out", "executor": "ray"}
    with pytest.raises(SettingsError, match=message):
        build(**given | more)
    if "task_index" not in more:
        paths = more.get("train", tmp_path / "text")
        options = {"paths": paths, "out": tmp_path / "out.json", "executor": "ray"}
        with pytest.raises(SettingsError, match=message):
            train(**options | {x: y for x, y in more.items() if x != "train"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_a_lock_of_a_dead_worker_is_waited_for(tmp_path: Path, monkeypatch: Any) -> None:
    """Until the machine knows that it is dead."""
    times = iter([0.0, 1.0, 61.0, 0.0, 1.0])
    slept: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: next(times), sleep=slept.append)
    monkeypatch.setattr(parts, "time", clock)
    with open_storage(tmp_path, "x") as first:

        def write(given: Any, number: int, minutes: float | None) -> int:
            with open_storage(tmp_path, "x"):
                return number

        with pytest.raises(OutputError, match="is writing in this directory"):
            parts.call(write, None, 5, None)
        assert slept == [parts._SECONDS_BETWEEN_LOOKS]
        clock.sleep = lambda seconds: first.__exit__(None, None, None)
        assert parts.call(write, None, 5, None) == 5
