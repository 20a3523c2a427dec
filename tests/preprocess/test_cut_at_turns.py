"""Windows and rows that are cut at turns: against plain Python, and what is left out."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written import dataset, write

from preprocess import Sampler, TokenFile, cli, write_rows
from preprocess.dataset.reader import TokenFileError
from preprocess.rows.manifest import MANIFEST_FILE
from preprocess.sampling import packing
from preprocess.sampling.data import SamplingError
from preprocess.settings import SettingsError
from preprocess.storage import OutputError


def conversations(directory: Path, masks: list[str], **more: Any) -> TokenFile:
    """Documents with these masks; their tokens are numbered from 0 on."""
    mask = [int(x) for x in "".join(masks)]
    ends = np.cumsum([len(each) for each in masks])
    more |= {"split_documents": True} if "shard_tokens" in more else {}
    return write(directory, np.arange(len(mask)), ends, mask=mask, vocab_size=2**24, **more)


def pieces_of(masks: list[str], length: int) -> list[list[int]]:
    """The tokens of each piece, in plain Python."""
    found, first = [], 0
    for mask in masks:
        cuts = [i for i in range(1, len(mask)) if mask[i - 1 : i + 1] == "10"] + [len(mask)]
        if mask.rstrip("0") == "1" * len(mask.rstrip("0")) and len(mask.rstrip("0")) >= max(
            len(mask) - 1, 1
        ):
            cuts = [*range(length, len(mask), length), len(mask)]
        begin = 0
        while begin < len(mask):
            fitting = [cut for cut in cuts if begin < cut <= begin + length]
            stop = following = fitting[-1] if fitting else next(x for x in cuts if x > begin)
            if not fitting:
                answer = len(mask[:stop].rstrip("1"))
                fits = stop - answer <= length
                begin = stop - length if fits else max(begin, answer - length // 2)
                stop = begin + length
            if "1" in mask[begin + 1 : stop + 1]:
                found.append([*range(first + begin, first + stop)])
            begin = following
        first += len(mask)
    return found


masks = st.lists(
    st.lists(
        st.sampled_from(["0", "00000", "1", "11111", "0110", "000111"]), min_size=1, max_size=9
    ).map("".join),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    masks, st.integers(2, 20), st.sampled_from(["packed", "documents"]),
    st.sampled_from([{}, {"shard_tokens": 7}]), st.sampled_from([1, 9, 1 << 22]),
)
def test_windows_are_those_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory, masks: list[str], length: int, windows: Any,
    shards: dict[str, int], block: int,
) -> None:
    file = conversations(tmp_path_factory.mktemp("turns"), masks, **shards)
    expected = pieces_of(masks, length)
    if not expected:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BLOCK", block)
        sampler = Sampler(
            file, 2, length, windows=windows, cut="turns", order="sequential", drop_last=False,
            fields=("inputs", "targets", "segment_ids", "loss_mask"),
        )
    found, of_mask = [], "".join(masks)
    ends = {int(end) for end in file.document_ends}
    for batch in sampler:
        for ids, targets, segments, mask in zip(*batch.values(), strict=True):
            for number in range(1, segments.max() + 1):
                here = segments == number
                piece = ids[here].tolist()
                found.append(piece)
                after = [-100 if x + 1 in ends else x + 1 for x in piece]
                # Without a target, there is nothing to be trained on.
                assert targets[here].tolist() == after
                assert mask[here].tolist() == [x >= 0 and of_mask[x] == "1" for x in after]
            if windows == "documents":
                assert segments.max() == 1
    assert sorted(found) == expected
    n_trained = sum(mask[1:].count("1") for mask in masks)
    kept = sum(of_mask[x + 1] == "1" for piece in found for x in piece if x + 1 not in ends)
    assert sampler.share_lost == pytest.approx(1 - kept / n_trained)
    assert sampler.tokens_per_window == sum(map(len, expected)) / sampler.n_windows


def test_rows_are_cut_at_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    masks = ["0011001101", "1111111110", "00000001111", "01111111"]
    file = conversations(tmp_path / "data", masks)
    caplog.set_level(logging.INFO)
    for options in ({"seq_length": 6, "strategy": "greedy"}, {"max_length": 6}):
        out = tmp_path / f"rows-{len(options)}"
        (result,) = write_rows(file.path, out=out, format="jsonl", cut="turns", **options)
        assert result.manifest.tokens == 32
        lines = (out / "train-00000-of-00001.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        n_trained = sum(label >= 0 for row in rows for label in row["labels"][1:])
        lost = 1 - n_trained / sum(mask[1:].count("1") for mask in masks)
        assert f"{lost:.2%}".replace("%", " %") + " of the tokens to train on do not" in caplog.text
        caplog.clear()
    assert [row["input_ids"] for row in rows] == pieces_of(masks, 6)


@pytest.mark.parametrize("n_turns", [5, 200_000])
def test_plans_have_room_for_numbers_of_any_size(tmp_path: Path, n_turns: int) -> None:
    file = conversations(tmp_path, ["0001111111" * n_turns])
    for _ in range(2):  # made, and read
        sampler = Sampler(file, 1, 10, windows="packed", cut="turns", order="sequential")
        assert sampler.n_windows == n_turns
        last = sampler.batch(n_turns - 1)["inputs"][0]
        assert last.tolist() == [*range(10 * n_turns - 10, 10 * n_turns)]


@pytest.mark.parametrize("damage", [{"trained": [1.5]}, {"trained": 7}, {"trained_after": "x"}])
def test_damaged_numbers_of_a_plan_are_told(tmp_path: Path, damage: dict[str, Any]) -> None:
    file = conversations(tmp_path, ["0001111111"])
    Sampler(file, 1, 10, windows="packed", cut="turns")
    (path,) = tmp_path.glob("*.plan")
    data, begin = path.read_bytes(), path.stat().st_size - 2 * 8 - 12  # of a row with one piece
    header = json.dumps(json.loads(data[:begin]) | damage).encode().ljust(begin)
    path.write_bytes(header + data[begin:])
    with pytest.raises(TokenFileError, match="damaged: expected a header of this dataset, and the"):
        Sampler(file, 1, 10, windows="packed", cut="turns")


def test_a_state_is_of_one_way_to_cut(tmp_path: Path) -> None:
    file = conversations(tmp_path, ["0011001101"] * 4)
    at_turns, by_length = (
        Sampler(file, 2, 6, windows="packed", cut=cut, order="epoch") for cut in ("turns", "length")
    )
    state = at_turns.state_dict()
    Sampler(file, 2, 6, windows="packed", cut="turns", order="epoch").load_state_dict(state)
    with pytest.raises(SamplingError, match="its cut is 'turns', and here it is 'length'"):
        by_length.load_state_dict(state)
    before = {x: y for x, y in by_length.state_dict().items() if x != "cut"}
    by_length.load_state_dict(before)


def test_rows_of_before_there_was_a_choice_are_known(tmp_path: Path) -> None:
    file = conversations(tmp_path / "data", ["0011001101"])
    options: dict[str, Any] = {"out": tmp_path / "rows", "max_length": 6, "format": "jsonl"}
    (result,) = write_rows(file.path, **options)
    settings = {x: y for x, y in result.manifest.settings.items() if x != "cut"}
    earlier = msgspec.structs.replace(result.manifest, settings=settings).to_json()
    (tmp_path / "rows" / MANIFEST_FILE).write_text(earlier)
    (again,) = write_rows(file.path, **options)
    assert not again.is_new
    with pytest.raises(OutputError, match=r"has rows of other settings \(cut\)"):
        write_rows(file.path, **options, cut="turns")


def test_refusals(tmp_path: Path, capsys: Any) -> None:
    file = conversations(tmp_path / "chats", ["0011", "01"])
    plain = dataset(tmp_path / "plain", [5, 9])
    for options, expected in (
        ({"windows": "stride"}, "cut='turns' needs windows='packed' or 'documents'"),
        ({"windows": "documents", "stride": 2}, "windows begin where a turn does"),
        ({"windows": "documents", "drop_short": True}, "without stride and drop_short"),
        ({"windows": "packed", "cut": "answers"}, "cut should be one of length, turns"),
    ):
        with pytest.raises(SamplingError, match=expected):
            Sampler(file, 1, 4, **{"cut": "turns", **options})  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match=r"which turns are found by \(cut='turns'\)"):
        Sampler(plain, 1, 4, windows="packed", cut="turns")
    zeros = conversations(tmp_path / "zeros", ["0000", "000"])
    for windows in ("packed", "documents"):
        with pytest.raises(SamplingError, match=r"its loss mask has no token to train on, .*cut="):
            Sampler(zeros, 1, 4, windows=windows, cut="turns")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="per_file and cut were both given: which rows"):
        write_rows(file.path, out=tmp_path / "rows", max_length=4, per_file=True, cut="turns")
    with pytest.raises(SettingsError, match="cut has no effect without"):
        write_rows(file.path, out=tmp_path / "rows", cut="turns")
    with pytest.raises(SettingsError, match="rows of documents begin where a turn does"):
        write_rows(file.path, out=tmp_path / "rows", max_length=4, stride=2, cut="turns")
    with pytest.raises(SamplingError, match="datasets of conversations have"):
        write_rows(plain.path, out=tmp_path / "rows", max_length=4, cut="turns")
    command = ["rows", str(plain.path), "--out", str(tmp_path / "rows"), "--max-length", "4"]
    assert cli.run([*command, "--cut", "turns"]) == 1
    assert "found by (--cut turns) and datasets" in capsys.readouterr().err
