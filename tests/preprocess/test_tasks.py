"""Parts of a build that tasks make on their own, and the dataset that they are joined to."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import format_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_cases import parts_of
from torture import contents
from verify_cases import flip

from preprocess import Sampler, build, merge_parts, open_tokens, write_rows
from preprocess.check.inspect import facts, format_lines
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.documents.batch import ReadOptions
from preprocess.pipeline import train
from preprocess.run.merge import MergeError
from preprocess.settings import SettingsError
from preprocess.sources.parts import sources_of_task
from preprocess.sources.text import TextSource
from preprocess.sources.text_file import open_file
from preprocess.storage import OutputError, open_storage

N_TASKS = 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """text/ with files of several formats; tokenizer.json."""
    root = tmp_path_factory.mktemp("tasks")
    (root / "text").mkdir()
    documents = format_files.DOCUMENTS
    format_files.write(root / "text" / "a.txt", documents[:120])
    format_files.write(root / "text" / "b.jsonl", documents[120:200])
    (root / "text" / "c.txt").write_bytes(b"")
    format_files.write(root / "text" / "d.json", documents[200:230])
    format_files.write(root / "text" / "e.txt.gz", documents[230:260])
    format_files.write(root / "text" / "f.txt", [*documents[260:], ""])
    train(paths=root / "text" / "a.txt", out=root / "tokenizer.json", vocab_size=280)
    return root


def options_of(root: Path, **more: Any) -> dict[str, Any]:
    return {
        "train": root / "text", "tokenizer": root / "tokenizer.json", "val_fraction": 0.1,
        "unit_size": 2000, "workers": 1,
    } | more  # fmt: skip


def build_parts(
    options: dict[str, Any], out: Path, count: int = N_TASKS, shuffled: int = 0
) -> None:
    order = list(range(count))
    random.Random(shuffled).shuffle(order)
    for index in order:
        build(**options, out=out, task_index=index, task_count=count)


def assert_same_stream(directory: Path, whole: Path, names: tuple[str, ...]) -> None:
    for name in names:
        found = open_tokens(directory / f"{name}.json")
        expected = open_tokens(whole / f"{name}.bin")
        assert np.array_equal(np.asarray(found.tokens), np.asarray(expected.tokens))
        assert np.array_equal(found.document_ends, expected.document_ends)
        assert found.manifest.n_bytes == expected.manifest.n_bytes
        assert found.n_documents == expected.n_documents


@pytest.fixture(scope="module")
def merged(root: Path) -> Path:
    """whole/, one build; merged/, that of three tasks."""
    build(**options_of(root), out=root / "whole")
    build_parts(options_of(root), root / "merged")
    merge_parts(root / "merged")
    return root / "merged"


@pytest.fixture
def data(merged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(merged, tmp_path / "data"))


# Dividing.


@pytest.mark.parametrize(
    ("count", "more"),
    [(1, {}), (2, {"on_bad_record": "skip"}), (7, {"val_fraction": 0, "shard_tokens": 900}),
     (12, {})],
)
def test_parts_are_the_stream_of_one_build(
    root: Path, tmp_path: Path, count: int, more: dict[str, Any]
) -> None:
    options = options_of(root, **more)
    build(**options, out=tmp_path / "whole")
    build_parts(options, tmp_path / "parts", count)
    found = merge_parts(tmp_path / "parts")
    assert_same_stream(tmp_path / "parts", tmp_path / "whole", tuple(found))
    # Of many tasks, some have nothing to do.
    assert any(not shard.n_documents for shard in found["train"].shards) == (count == 12)
    assert all(each.sound for each in verify(tmp_path / "parts", deep=True))
    stats = [json.loads((tmp_path / x / "stats.json").read_text()) for x in ("whole", "parts")]
    for key in ("documents", "bytes", "tokens", "empty_documents", "outputs", "look_alikes"):
        assert stats[0][key] == stats[1][key]


@given(
    text=st.lists(st.sampled_from(["\n", "\n\n", "a", "bc ", "日"]), max_size=60).map("".join),
    count=st.integers(1, 9),
    unit_size=st.integers(1, 30),
    separator=st.sampled_from([b"\n\n", b"\n", b"<|endoftext|>", b""]),
)
def test_any_text_is_divided_between_documents(
    path: Path, text: str, count: int, unit_size: int, separator: bytes
) -> None:
    path.write_text(text, newline="")
    reading = ReadOptions(separator=separator, unit_size=unit_size)
    source = TextSource(open_file(path), "x", reading)

    def documents(sources: Any) -> tuple[bytes, int, int]:
        batches = [unit.read() for each in sources for unit in each.units()]
        ended = sum(each.n_ended for each in batches)
        return b"".join(x for b in batches for x in parts_of(b)), ended, sum(
            each.n_empty for each in batches
        )

    parts = [sources_of_task([source], index, count) for index in range(count)]
    assert documents(x for part in parts for x in part) == documents([source])
    assert b"".join(
        piece.tobytes() for part in parts for each in part for _, piece in each.content()
    ) == text.encode()
    # Any position between units of a part is one where it can be resumed.
    for each in (x for part in parts for x in part):
        units = list(each.units())
        sizes = [unit.n_bytes for unit in units]
        for i, unit in enumerate(units[:-1]):
            assert [x.n_bytes for x in each.units(unit.after)] == sizes[i + 1 :]
        assert units[-1].after is None


def test_conversations_in_one_file_make_a_mask_in_all_parts(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="chat templates need transformers")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    (tmp_path / "b.txt").write_text("plain text")
    template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    (tmp_path / "template").write_text(template)
    options = options_of(
        root, train=[tmp_path / "a.jsonl", tmp_path / "b.txt"], val_fraction=0,
        chat_template=str(tmp_path / "template"),
    )  # fmt: skip
    build_parts(options, tmp_path / "parts", 2)
    merge_parts(tmp_path / "parts")
    build(**options, out=tmp_path / "whole")
    assert_same_stream(tmp_path / "parts", tmp_path / "whole", ("train",))
    masks = [open_tokens(tmp_path / x / "train.json").loss_mask for x in ("parts", "whole")]
    assert np.array_equal(*map(np.asarray, masks))


# Tasks.


@pytest.mark.parametrize(("more", "message"), [
    ({"task_index": 0}, "task_index has no effect without task_count; give it"),
    ({"task_count": 3}, "say which part this task makes"),
    ({"task_index": 3, "task_count": 3}, "parts are counted from 0 to 2"),
    ({"task_index": 0, "task_count": 3, "tokenizer": None}, "a tokenizer is trained on all"),
    ({"task_index": 0, "task_count": 3, "train": "-"}, "is not divided among tasks or w"),
])  # fmt: skip
def test_what_tasks_cannot_do(
    root: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        build(**options_of(root, out=tmp_path / "out") | more)
    assert not (tmp_path / "out").exists()


def test_tasks_run_at_the_same_time_and_a_task_once(root: Path, tmp_path: Path) -> None:
    options, out = options_of(root), tmp_path / "out"
    with open_storage(out, "part-00000-of-00003_build", own_lock=True):
        build(**options, out=out, task_index=1, task_count=3)
        with pytest.raises(OutputError, match="is writing in this directory"):
            build(**options, out=out, task_index=0, task_count=3)
    build(**options, out=out, task_index=0, task_count=3)
    assert not list(out.glob(".*"))


def test_the_first_task_writes_the_tokenizer(root: Path, tmp_path: Path) -> None:
    options, out = options_of(root), tmp_path / "out"
    build(**options, out=out, task_index=1, task_count=3)
    assert not (out / "tokenizer.json").exists()
    # As it is while the first task publishes it.
    (out / "tokenizer_config.json").write_text("{}")
    build(**options, out=out, task_index=2, task_count=3)
    build(**options, out=out, task_index=0, task_count=3, overwrite=True)
    assert (out / "tokenizer.json").read_bytes() == (root / "tokenizer.json").read_bytes()
    train(paths=root / "text" / "b.jsonl", out=tmp_path / "other.json", vocab_size=270)
    other = options | {"tokenizer": tmp_path / "other.json", "name": "x"}
    with pytest.raises(OutputError, match="another tokenizer exists"):
        build(**other, out=out, task_index=1, task_count=3)


def test_finished_tasks_are_up_to_date_also_after_merging(
    root: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(data)
    result = build(**options_of(root), out=data, task_index=1, task_count=N_TASKS)
    assert "up to date" in result.lines[0]
    assert run(["merge", str(data)]) == 0
    assert "train: " in capsys.readouterr().out
    assert contents(data) == before


# Merging.


def test_a_merged_dataset_is_read_as_one(root: Path, merged: Path, tmp_path: Path) -> None:
    assert_same_stream(merged, root / "whole", ("train", "val"))
    files = [open_tokens(merged / "train.json"), open_tokens(root / "whole" / "train.bin")]
    for windows in ("stride", "documents", "packed"):
        batches = [Sampler(x, 4, 50, windows=windows, seed=3).batch(0)["inputs"] for x in files]
        assert np.array_equal(*batches)
    text = "\n".join(format_lines(facts(merged)))
    assert "train.json:\n" in text
    assert "_train.json" not in text
    rows = []
    for data in (merged, root / "whole"):
        written = write_rows(data, out=tmp_path / data.name, format="jsonl", max_length=64)
        rows.append([path.read_bytes() for each in written for path in each.path.glob("*.jsonl")])
    assert rows[0] == rows[1] != []
    findings = verify(merged, deep=True)
    assert all(finding.sound for finding in findings)
    assert {finding.path.name for finding in findings} == {
        "train.json", "val.json", "tokenizer.json",
    }  # fmt: skip


def test_damage_of_a_part_is_repaired(data: Path) -> None:
    before = contents(data)
    for name in ("part-00001-of-00003_train.bin", "part-00002-of-00003_val.docs"):
        flip(data / name, 8)
    assert not all(finding.sound for finding in verify(data))
    assert all(finding.path.exists() for finding in verify(data, repair=True))
    assert contents(data) == before
    # A merged manifest is rebuilt after those of parts.
    for name in ("part-00002-of-00003_train", "train"):
        (data / f"{name}.json").unlink()
    (data / "part-00000-of-00003_val.bin").unlink()  # is none of the files that train joins
    assert all(finding.sound for finding in verify(data, repair=True))
    assert contents(data) == before


def test_an_ordinary_build_leaves_the_parts(root: Path, data: Path) -> None:
    parts = {name: x for name, x in contents(data).items() if name.startswith("part-")}
    with pytest.raises(TokenFileError, match=r"train.json: exists"):
        build(**options_of(root), out=data)
    build(**options_of(root), out=data, overwrite=True)
    assert (data / "train.bin").exists()
    assert parts.items() <= contents(data).items()
    with pytest.raises(TokenFileError, match=r"train.json: exists"):
        merge_parts(data)
    merge_parts(data, overwrite=True)
    assert not (data / "train.bin").exists()
    assert parts.items() <= contents(data).items()
    assert all(finding.sound for finding in verify(data, deep=True))


def test_a_name_of_the_user(root: Path, tmp_path: Path) -> None:
    build_parts(options_of(root, name="x_y"), tmp_path)
    merge_parts(tmp_path, name="x_y")
    assert (tmp_path / "x_y_train.json").exists()
    with pytest.raises(MergeError, match="no finished part of a task is here; check the path"):
        merge_parts(tmp_path)


def test_parts_that_are_missing(data: Path, root: Path) -> None:
    (data / "part-00001-of-00003_stats.json").unlink()
    with pytest.raises(MergeError, match=r"1 of 3 parts are not finished: those of task 1; run"):
        merge_parts(data)
    build(**options_of(root), out=data, task_index=0, task_count=2)
    with pytest.raises(MergeError, match="there are parts of builds with 2 and 3 tasks"):
        merge_parts(data)


def test_parts_of_other_builds(data: Path, root: Path, tmp_path: Path) -> None:
    again = {"out": data, "task_index": 1, "task_count": 3, "overwrite": True}
    build(**options_of(root, val_fraction=0.2), **again)
    with pytest.raises(MergeError, match=r"not of the same build as .* val_fraction was 0.1"):
        merge_parts(data)
    shutil.copytree(root / "text", tmp_path / "text")
    build(**options_of(root, train=tmp_path / "text"), **again)
    with pytest.raises(MergeError, match="sources_of_all_tasks was"):
        merge_parts(data)


def test_parts_that_are_damaged(data: Path) -> None:
    path = data / "part-00001-of-00003_train.docs"
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(MergeError, match=r"has 584 bytes, expected 592 bytes as"):
        merge_parts(data)
    path.unlink()
    with pytest.raises(MergeError, match=r"is missing, expected 592 bytes .*; restore or"):
        merge_parts(data)
    path.write_bytes(content)
    manifest = data / "part-00001-of-00003_train.json"
    manifest.write_text(manifest.read_text().replace("a.txt", "b.txt"))
    with pytest.raises(MergeError, match="does not have the digest in part-00001-of-00003_stats"):
        merge_parts(data)
    (data / "part-00001-of-00003_stats.json").write_text("{}")
    with pytest.raises(MergeError, match="is not as a task wrote it"):
        merge_parts(data)


def test_no_validation_at_all(root: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one<|endoftext|>two<|endoftext|>three")
    build_parts(options_of(root, train=tmp_path / "text", val_fraction=1e-9), tmp_path / "out")
    with pytest.raises(MergeError, match="no part has a document of val, so it would be empty"):
        merge_parts(tmp_path / "out")
