"""What is said of Ray where it is missing, or cannot be used; needs no Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preprocess import PipelineConfig, build
from preprocess.report.progress import Progress
from preprocess.run.ray import on_ray
from preprocess.run.ray_cluster import RayError
from preprocess.settings.cluster import resources_of
from preprocess.settings.options import SettingsError, convert
from preprocess.settings.schema import BuildSettings


def test_without_ray_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        on_ray(2, address, {}, Progress()).__enter__()
    assert "; start a cluster (ray start --head), and" in str(caught.value)
    assert given["address"] == address or "local"
    assert given.get("include_dashboard", False) is False


def test_options_of_ray_need_ray() -> None:
    with pytest.raises(SettingsError, match="ray_address and ray_resources are for workers on Ray"):
        convert({"ray_address": "auto"}, BuildSettings)
    for wrong in ("CPU", {"CPU": "x"}, ["=2"], "CPU=2"):
        with pytest.raises(SettingsError, match="amounts of resources, such as CPU=2"):
            convert({"executor": "ray", "ray_resources": wrong}, BuildSettings)
    found = convert({"executor": "ray", "ray_resources": {"CPU": 2, "x": 0.5}}, BuildSettings)
    assert resources_of(found.ray_resources) == {"CPU": 2.0, "x": 0.5}


def test_the_section_of_a_configuration() -> None:
    datasets = [{"name": "x", "data_files": "x", "tokenizer": "t"}]
    for ray in (None, {"enabled": False, "num_workers": 3}):
        config = PipelineConfig(datasets=datasets, ray=ray)
        assert config.builds["x"].executor == "threads"
    config = PipelineConfig(datasets=datasets, ray={"num_workers": 3, "address": "auto"})
    found = config.builds["x"]
    assert (found.executor, found.workers, found.ray_address) == ("ray", 3, "auto")
    with pytest.raises(SettingsError, match="it belongs in the section ray"):
        PipelineConfig(datasets=datasets, tokenize={"num_workers": 3})
