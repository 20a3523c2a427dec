"""A writer that is resumed, fails, or finds files that are not what the journal says."""

import os
from pathlib import Path

import numpy as np
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st
from written import FIELDS, GOLDEN_ENDS, GOLDEN_IDS, write

from bpe.errors import TokenmillError
from preprocess.dataset.columns import BLOCK_BYTES
from preprocess.dataset.reader import open_tokens
from preprocess.dataset.writer import TokenFileWriter, WriterState
from preprocess.storage import LocalStorage


@given(
    documents=st.lists(st.lists(st.integers(0, 298), max_size=6), min_size=1, max_size=12),
    data=st.data(),
)
def test_a_writer_goes_on_where_another_was_cut_off(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], data: st.DataObject
) -> None:
    ids = [token for document in documents for token in [*document, 299]]
    ends = np.cumsum([len(document) + 1 for document in documents]).astype(np.int64)
    cut = data.draw(st.integers(0, len(ids)))
    whole, resumed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("resumed")
    write(whole, ids, ends)
    with LocalStorage(resumed, "x") as storage:
        writer = TokenFileWriter(storage, "train", vocab_size=301)
        writer.append(np.array(ids[:cut], np.uint32), ends[ends <= cut])
        states = [writer.state()]
        # What the journal does not know of is cut off.
        writer.append(np.array([*ids[cut:], 7, 299]), np.array([len(ids) - cut + 2]))
        writer.close()
        writer = TokenFileWriter(storage, "train", vocab_size=301, states=states)
        writer.append(np.array(ids[cut:], np.uint32), ends[ends > cut] - cut)
        writer.finish(end_of_text_id=299, **FIELDS)
        storage.publish(["train.bin", "train.docs"], ["train.json"])
    for name in ("train.bin", "train.docs", "train.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()


def test_full_blocks_are_told_once_and_taken_over(tmp_path: Path) -> None:
    ids = np.arange(3 * BLOCK_BYTES // 2, dtype=np.uint32) % 299
    write(tmp_path / "whole", np.tile(ids, 2), np.array([2 * len(ids)]))
    with LocalStorage(tmp_path, "x") as storage:
        writer = TokenFileWriter(storage, "train", vocab_size=301)
        writer.append(ids, np.array([], np.int64))
        states = [writer.state(), writer.state()]
        assert [len(state.streams["train.bin"].blocks) for state in states] == [3, 0]
        writer.close()
        writer = TokenFileWriter(storage, "train", vocab_size=301, states=states)
        writer.append(ids, np.array([len(ids)]))
        manifest = writer.finish(end_of_text_id=299, **FIELDS)
    assert manifest == open_tokens(tmp_path / "whole" / "train.bin").manifest


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_stream_that_is_not_what_the_journal_says(tmp_path: Path, damage: str) -> None:
    with LocalStorage(tmp_path, "x") as storage:
        writer = TokenFileWriter(storage, "train", vocab_size=301)
        writer.append(np.array(GOLDEN_IDS), np.array(GOLDEN_ENDS))
        states = [writer.state()]
        writer.close()
        path = storage.directory / "train.bin"
        content = path.read_bytes()
        path.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
        expected = r"its last block, from byte 0" if damage == "flip" else r"14 bytes, .* found 13"
        with pytest.raises(TokenmillError, match=expected + r".*overwrite=True"):
            TokenFileWriter(storage, "train", vocab_size=301, states=states)


def test_error_inside_the_with_block_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        written.token_file(tmp_path, "train", vocab_size=301),
    ):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("n_written", "skip", "first"), [(1, 8, 0), (3, 20, 0), (3, 10, 1)])
def test_ids_that_are_written_already_are_skipped(
    tmp_path: Path, n_written: int, skip: int, first: int
) -> None:
    """As after a run whose workers wrote the first shards, up to inside the next ids or to the end.

    A worker writes of a shard what a writer without shards writes.
    """
    ids, ends = np.arange(20, dtype=np.uint16), np.array([3, 8, 12, 20])
    pieces = [(ids[:10], ends[:2]), (ids[10:], ends[2:] - 10)]
    files = []
    for name in ("whole", "resumed"):
        with LocalStorage(tmp_path / name, "run") as storage:
            shards = []
            for number, (start, stop) in enumerate([(0, 8), (8, 12), (12, 20)][:n_written]):
                worker = TokenFileWriter(storage, f"x_{number:05d}", vocab_size=20)
                worker.append(ids[start:stop], ends[(ends > start) & (ends <= stop)] - start)
                shards.append(worker.finish_files())
            state = WriterState({}, tuple(shards), 0, skip)
            of_before = (state,) if name == "resumed" else ()
            writer = TokenFileWriter(
                storage, "x", vocab_size=20, shard_tokens=8, states=of_before
            )  # fmt: skip
            for piece in pieces[first if of_before else 0 :]:
                writer.append(*piece)
            assert writer.state().skip == 0
            writer.finish(**FIELDS | {"end_of_text_id": 0})
            files.append({path: storage.get(path) for path in storage.names()})
    assert files[0] == files[1]
    assert len(files[0]) == 7
