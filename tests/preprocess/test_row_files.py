"""Files of rows that are damaged, hostile, or of something else: each is refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_cases import dataset, need, read, rows_of

from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.write import write_rows


@pytest.mark.parametrize("format_name", FORMATS)
def test_hostile_files_are_refused(tmp_path: Path, format_name: Any) -> None:
    need(format_name)
    dataset(tmp_path / "data", [20] * 50)
    (result,) = write_rows(
        tmp_path / "data", out=tmp_path / "rows", format=format_name, max_length=20,
        padding="max-length",
    )
    (facts,) = result.manifest.shards
    path = result.path / facts.name
    sound = path.read_bytes()
    codec = FORMATS[format_name].codec()
    expected = [row for batch in codec.read_shard(path) for row in rows_of(batch)]
    chosen = np.random.default_rng(0)
    cuts = [0, 1, 7, *chosen.integers(8, len(sound) - 1, 20).tolist()]
    flips = chosen.integers(0, len(sound), 150).tolist()
    changed = [sound[:cut] for cut in cuts]
    for place in flips:
        data = bytearray(sound)
        data[place] ^= int(chosen.integers(1, 256))
        changed.append(bytes(data))
    n_refused = 0
    for data in changed:
        path.write_bytes(data)
        try:
            found = [row for batch in codec.read_shard(path) for row in rows_of(batch)]
        except RowsError as error:
            n_refused += 1
            assert str(path) in str(error) or "pickle" in str(error)
        else:
            assert found != expected or data != sound or format_name in ("parquet", "arrow", "npz")
    assert n_refused > 10


def test_arrow_files_with_other_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    rows = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"input_ids": rows}), path)
    assert read(path) == [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    for table, message in [
        ({"text": ["a"]}, "column 'text' is string, expected lists of int32; these are no rows"),
        ({"input_ids": [[1], None]}, "column 'input_ids' has nulls, expected lists of int32"),
        ({"input_ids": rows, "labels": [[1], [2]]}, "the columns of a row differ in length; make"),
        ({"input_ids": [[2**40]]}, "column 'input_ids' has numbers that are no int32"),
    ]:
        parquet.write_table(pa.table(table), path)
        with pytest.raises(RowsError, match=message):
            read(path)


def test_npz_files_with_other_arrays(tmp_path: Path) -> None:
    path, ids = tmp_path / "x.npz", np.arange(6, dtype=np.int32).reshape(2, 3)
    np.savez_compressed(path, input_ids=ids)
    assert read(path) == [{"input_ids": [0, 1, 2]}, {"input_ids": [3, 4, 5]}]
    wide = r"array 'input_ids' is int64\[2, 3\], expected int32\[rows, length\]; these are no"
    for arrays, message in [
        ({"input_ids": ids.astype(np.int64)}, wide),
        ({"input_ids": ids, "labels": ids[:1]}, "the arrays differ in shape, expected one; make"),
        ({"input_ids": np.array([[1], {}], object)}, "is no NPZ file, or damaged|is object"),
    ]:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(RowsError, match=message):
            read(path)
    import zipfile

    header = {"descr": "<i4", "fortran_order": False}
    for shape, data, message in [
        ((10**15, 10**6), bytes(24), "an array is shorter than its header says; make it again"),
        ((1, 2), bytes(24), "an array is longer than its header says"),
    ]:
        with zipfile.ZipFile(path, "w") as archive, archive.open("input_ids.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header | {"shape": shape})
            member.write(data)
        with pytest.raises(RowsError, match=message):
            read(path)
    path.write_bytes(b"text")
    with pytest.raises(RowsError, match="is no NPZ file, or damaged"):
        read(path)


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    import pickle

    path, ran = tmp_path / "dump-0.pkl", tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> Any:
            return open, (str(ran), "w")

    class Pointing(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return "somewhere" if obj == "there" else None

    import io

    pointing = io.BytesIO()
    Pointing(pointing).dump(["there"])
    for data, message in [
        (pickle.dumps([Hostile()]), r"the pickle names .*open, which it could run; rows are lists"),
        (pickle.dumps([np.arange(3)]), "the pickle names numpy"),
        (pointing.getvalue(), "the pickle refers to objects outside of it; rows are lists of numb"),
        (pickle.dumps({"a": 1}), "has a dict, expected a pickled list of lists of token ids"),
        (pickle.dumps([[1], ["a"]]), "has elements that are no numbers, expected a pickled list"),
        (pickle.dumps([[2**40]]), "has ids that are no int32, expected a pickled list"),
        (b"text", r"is no pickle, or damaged \("),
        (b"", r"is no pickle, or damaged \("),
    ]:
        path.write_bytes(data)
        with pytest.raises(RowsError, match=message):
            read(path)
    assert not ran.exists()
