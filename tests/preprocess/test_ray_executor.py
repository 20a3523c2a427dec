"""How work is shared among actors of Ray, and what is done if they fail; without Ray itself."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import fake_ray
import numpy as np
import pytest
from ray_cases import Squares, Unit

from bpe.errors import ChangedError
from preprocess import build
from preprocess.pipeline import train
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import ray_shards
from preprocess.run.memory_limit import apply_profile, fit_to_memory
from preprocess.run.ray import RayExecutor, Stored
from preprocess.run.ray_cluster import RayError
from preprocess.settings.options import convert
from preprocess.settings.schema import BuildSettings
from preprocess.storage import DamagedStateError, LocalStorage


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = fake_ray.fake_ray()
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


def started(ray: Any, workers: int) -> RayExecutor:
    executor = RayExecutor(ray, workers, {})
    executor.start()
    return executor


# Which actor does what.


def test_no_unit_waits_for_a_call_while_another_actor_is_free(ray: Any) -> None:
    executor = started(ray, 2)
    with closing(executor(map(Unit, range(40)), Squares(), 2)) as results:
        found = [next(results) for _ in range(3)]
        call = executor.call(pow, 2, 10)
        writer, other = call.actor.handle, next(x for x in ray.actors if x is not call.actor.handle)
        n_units = other.done.count("run")
        found += [next(results) for _ in range(30)]
        assert "call" not in writer.done
        assert other.done.count("run") > n_units + 20
        # A second call goes to the other actor.
        second = executor.call(pow, 2, 11)
        assert second.actor is not call.actor
        assert (executor.result_of(call), executor.result_of(second)) == (1024, 2048)
        found += results
    assert found == [i**2 for i in range(40)]
    assert [each.n_units for each in executor._actors] == [0, 0]


def test_calls_that_nobody_waits_for_are_noted(ray: Any) -> None:
    executor = started(ray, 1)
    with closing(executor(map(Unit, range(9)), Squares(), 1)) as results:
        found = [next(results)]
        call = executor.call(pow, 2, 10)
        found += results
    assert found == [i**2 for i in range(9)]  # behind the call
    assert executor.is_done(call)
    assert executor._actors[0].n_units == 0
    assert executor.result_of(call) == 1024
    assert executor._actors[0].n_units == 0


# What is lost.


@pytest.mark.parametrize("kind", [fake_ray.ObjectLostError, fake_ray.RayActorError])
def test_objects_that_are_lost_again_and_again_end_the_run(ray: Any, kind: Any) -> None:
    executor = started(ray, 2)
    before = list(executor._actors)

    def losing() -> None:
        raise kind("the object is gone")

    for _ in range(3):
        assert executor.result_of(executor.call(losing)) is None
    with pytest.raises(RayError, match="what they had made was lost, 4 times in a row, the last"):
        executor.result_of(executor.call(losing))
    assert executor._actors == before
    executor._n_losses = 0

    def lost(reference: Any) -> Any:
        found = fake_ray.get(reference)
        if isinstance(found, tuple):
            raise fake_ray.ObjectLostError("the object is gone")
        return found

    ray.get = lost
    with pytest.raises(RayError, match="row, the last time so: the object is gone; if memory is"):
        list(executor(map(Unit, range(9)), Squares(), 2))
    assert executor._actors == before


def test_only_an_actor_that_died_is_replaced(ray: Any) -> None:
    executor = started(ray, 2)
    call = executor.call(pow, 2, 10)
    call.reference.value, call.reference.is_done = fake_ray.RayActorError("killed"), True
    assert executor.result_of(call) is None
    assert call.actor not in executor._actors
    assert (executor._n_losses, len(executor._actors)) == (1, 2)
    # It is not counted again.
    again = executor.call(pow, 2, 10)
    again.actor, again.reference.value = call.actor, fake_ray.RayActorError("killed")
    again.reference.is_done = True
    assert executor.result_of(again) is None
    assert executor._n_losses == 1


class Changing:
    """Makes work that fails."""

    def __call__(self) -> Any:
        def work(unit: Any) -> Any:
            raise ChangedError(f"{unit.where}: has changed")

        return work


def test_a_unit_that_fails_when_it_is_made_again(ray: Any, tmp_path: Path) -> None:
    executor = started(ray, 1)
    results = executor.run_tasks(map(Unit, range(3)), Changing(), is_apart=True)
    with pytest.raises(ChangedError, match="unit 0: has changed"), closing(results):
        next(results)
    stored = Stored(ray.put(Unit(5)), fake_ray.Reference(None, fake_ray.ObjectLostError("gone")))
    executor.make_again(stored)
    with LocalStorage(tmp_path, "x") as storage:
        pieces = [(stored.reference, 0, 1, 0, 0)]
        call = executor.call(ray_shards.write_shard, storage, "a", 300, False, pieces)
        with pytest.raises(ChangedError, match="unit 5: has changed"):
            executor.result_of(call)


# Whole builds.


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    chosen = np.random.default_rng(1)
    words = ["the", "low", "lower", "newest", "it's", "42", "\n"]
    documents = [" ".join(chosen.choice(words, chosen.integers(1, 90))) for _ in range(200)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    train(paths=tmp_path / "text", out=tmp_path / "t.json", vocab_size=300)
    return {
        "train": tmp_path / "text", "tokenizer": tmp_path / "t.json", "val_fraction": 0.2,
        "unit_size": 500, "shard_tokens": 400, "workers": 2,
    }


def contents(directory: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in directory.iterdir() if x.name != "stats.json"}


class Short(Progress):
    """Has time for a part of the text in each run."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__()
        self._n_bytes = n_bytes

    def out_of_time(self) -> bool:
        stage = self.stages[-1]
        return stage.done - stage.done_before >= self._n_bytes


def test_short_runs_advance_though_shards_are_written_late(
    ray: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    build(**options, out=tmp_path / "threads")
    before = []
    while len(before) < 40:
        progress = Short(5_000)
        try:
            build(**options, out=tmp_path / "out", executor="ray", progress=progress)
            break
        except OutOfTimeError as error:
            assert "encoding resumes from there" in str(error)
        before.append(progress.stages[-1].done_before)
    assert before == sorted(set(before))
    assert len(before) > 3
    assert contents(tmp_path / "out") == contents(tmp_path / "threads")


def test_a_run_that_finishes_no_shard_says_so(
    ray: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    options |= {"out": tmp_path / "out", "executor": "ray", "shard_tokens": 8_000}
    for _ in range(2):
        with pytest.raises(OutOfTimeError, match="this run has finished no shard, and progress is"):
            build(**options, progress=Short(1))


def test_a_file_that_is_cut_off_after_it_was_written(
    ray: Any, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an actor that was believed dead, and is not."""
    flush = ray_shards.ShardsOnRay.flush

    def cutting(self: ray_shards.ShardsOnRay) -> None:
        flush(self)
        storage: Any = self._files.storage
        name = next(x for x in sorted(storage.names()) if "00001" in x and x.endswith(".docs"))
        path = storage.path(name)
        path.write_bytes(path.read_bytes()[:8])

    monkeypatch.setattr(ray_shards.ShardsOnRay, "flush", cutting)
    message = r"00001.*\.docs: expected \d+ bytes, as a worker of Ray wrote, found 8; another"
    with pytest.raises(DamagedStateError, match=message):
        build(**options, out=tmp_path / "out", executor="ray")


# Units.


def test_units_for_ray_are_large_unless_their_size_is_given() -> None:
    def size_of(**given: Any) -> int:
        settings = convert({"vocab_size": 1000, "workers": 4} | given, BuildSettings)
        return fit_to_memory(apply_profile(settings, given)).unit_size

    assert size_of(executor="ray") == 16 << 20
    assert size_of() == 4 << 20
    assert size_of(executor="ray", unit_size="4MiB") == 4 << 20
    assert size_of(executor="ray", profile="balanced", workers=1) == 1 << 20
    assert size_of(executor="ray", memory_limit="8GB") == 16 << 20
    assert size_of(executor="ray", memory_limit="3GB") == 4 << 20
    assert size_of(executor="ray", memory_limit="1GB") == 256 << 10
