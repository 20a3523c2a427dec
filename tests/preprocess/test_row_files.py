"""Files of rows that are damaged, hostile, or of something else: each is refused with a reason."""

from __future__ import annotations

import copyreg
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_cases import dataset, need, read

from preprocess import verify
from preprocess.rows.formats import FORMATS, RowsError, open_file
from preprocess.rows.write import write_rows

KINDS = [(name, how) for name, each in FORMATS.items() for how in each.compressions]


@pytest.mark.parametrize(("format_name", "compression"), KINDS)
def test_hostile_files_are_refused(tmp_path: Path, format_name: Any, compression: Any) -> None:
    """Any damage is an error of ours, or not seen, however a file is read."""
    need(format_name)
    dataset(tmp_path / "data", [20] * 50)
    (result,) = write_rows(
        tmp_path / "data", out=tmp_path / "rows", format=format_name, max_length=20,
        padding="max-length", compression=compression,
    )
    (facts,) = result.manifest.shards
    path = result.path / facts.name
    sound, expected = path.read_bytes(), read(path)
    chosen = np.random.default_rng(0)
    cuts = [0, 1, 7, *chosen.integers(8, len(sound) - 1, 20).tolist()]
    changed = [sound[:cut] for cut in [*cuts, *range(len(sound) - 9, len(sound))]]
    for place in chosen.integers(0, len(sound), 60).tolist():
        data = bytearray(sound)
        data[place] ^= int(chosen.integers(1, 256))
        changed.append(bytes(data))
    n_refused = 0
    for data in changed:
        path.write_bytes(data)
        try:
            found, file = read(path), open_file(path)
            blocks = map(file.block, range(len(file.starts) - 1))
            one_by_one = [block[i] for block in blocks for i in range(len(block))]
            assert len(one_by_one) == len(found)
        except RowsError as error:
            n_refused += 1
            assert str(path) in str(error)
        else:
            assert found != expected or data != sound or format_name in ("parquet", "arrow", "npz")
    assert n_refused > 10


def test_arrow_files_with_other_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    rows = pa.array([[1, 2], [3]], pa.list_(pa.int64()))
    path = tmp_path / "x.parquet"
    for each in (rows, rows.cast(pa.list_(pa.uint64()))):
        parquet.write_table(pa.table({"input_ids": each}), path)
        assert read(path) == [{"input_ids": [1, 2]}, {"input_ids": [3]}]
    for table, message in [
        ({"text": ["a"]}, "row 0, counted from 0, has str in column 'text', expected integers, w"),
        ({"input_ids": [[0.5]]}, "has a list with other values in column 'input_ids', expec"),
        ({"input_ids": [[1, None]]}, "has a list with other values in column 'input_ids', "),
        ({"input_ids": [[1], None]}, "row 1, counted from 0, has NoneType in column 'input_ids'"),
        ({"input_ids": rows, "labels": [[1], [2]]}, "has columns of different lengths; make"),
        ({"input_ids": [[2**40]]}, "numbers that are no int32 in column"),
    ]:
        parquet.write_table(pa.table(table), path)
        with pytest.raises(RowsError, match=message):
            read(path)


def test_npz_files_with_other_arrays(tmp_path: Path) -> None:
    path, ids = tmp_path / "x.npz", np.arange(6, dtype=np.int32).reshape(2, 3)
    np.savez_compressed(path, input_ids=ids)
    assert read(path) == [{"input_ids": [0, 1, 2]}, {"input_ids": [3, 4, 5]}]
    for kind in (">i8", "<u2", "i1"):
        np.savez(path, input_ids=ids.astype(kind), attention_mask=ids > 0)
        assert read(path)[1] == {"input_ids": [3, 4, 5], "attention_mask": [1, 1, 1]}
    for arrays, message in [
        ({"input_ids": ids + np.int64(2**40)}, "numbers that are no int32 in column"),
        ({"input_ids": ids * 0.5}, r"is float64\[2, 3\], expected integer\[rows, length\]"),
        ({"input_ids": ids[:0]}, r"is int32\[0, 3\], expected integer\[rows, length\], not empty"),
        ({"input_ids": np.array([[1, 2], [3]], object)},
         r"is object\[2\], expected .*, with rows padded to one length"),
        ({"input_ids": ids, "labels": ids[:1]}, "the arrays differ in shape, expected one"),
        ({"input_ids": np.array([[1], {}], object)}, "cannot be read as NPZ"),
    ]:
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(RowsError, match=message):
            read(path)
    import zipfile

    header = {"descr": "<i4", "fortran_order": False}
    for shape in ((10**15, 10**6), (1, 2), (1, -5), (2**60, 0), (0, 5), (6, 1, 1), (1, 2**40)):
        with zipfile.ZipFile(path, "w") as archive, archive.open("input_ids.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header | {"shape": shape})
            member.write(bytes(24))
        with pytest.raises(RowsError, match="as NPZ"):
            read(path)
    # A member of 64 MB whose header is of other arrays is not decompressed.
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("input_ids.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(member, header | {"shape": (2, 3)})
        member.write(bytes(1 << 26))
    tracemalloc.start()
    with pytest.raises(RowsError, match="has 67,108,864 bytes, expected 24 by its shape"):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()
    for how in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with (
            zipfile.ZipFile(path, "w", how) as archive,
            archive.open("input_ids.npy", "w") as member,
        ):
            np.save(member, ids)
        with pytest.raises(RowsError, match="has another compression than NumPy's"):
            read(path)
    with zipfile.ZipFile(path, "w") as archive, archive.open("input_ids.npy", "w") as member:
        np.lib.format.write_array(member, ids, (2, 0))
    with pytest.raises(RowsError, match=r"has version \(2, 0\), expected \(1, 0\)"):
        read(path)
    np.savez(path, **{f"a{i}": ids for i in range(17)})
    with pytest.raises(RowsError, match="17 arrays, expected 16 at most"):
        read(path)
    np.savez(path, input_ids=ids)
    sound = path.read_bytes()
    # An entry that claims more than it has, and one that claims less.
    for claimed in (200, 100):
        changed = sound.replace((152).to_bytes(4, "little"), claimed.to_bytes(4, "little"))
        assert changed != sound
        path.write_bytes(changed)
        with pytest.raises(RowsError, match="as NPZ"):
            read(path)
    path.write_bytes(b"text")
    with pytest.raises(RowsError, match="cannot be read as NPZ"):
        read(path)


def test_hostile_pickles_run_nothing(tmp_path: Path) -> None:
    import pickle

    path, ran = tmp_path / "dump-0.pkl", tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> Any:
            return open, (str(ran), "w")

    refused = "which is in no pickle of rows; it is refused, for a pickle may run any program when"
    others, inside = "expected a pickled list of lists of token ids", "or something else, inside of"
    for data, message in [
        (pickle.dumps([Hostile()]), f"names _?io.open, {refused}"),
        (pickle.dumps([np.arange(3), {}]), f"has dict, {inside} rows, {others}"),
        (pickle.dumps([np.ones(3)]), f"has arrays of <f8, {others}"),
        (pickle.dumps([np.array([{}])]), rf"has arrays of \|O8, {others}"),
        (pickle.dumps(np.arange(3)), inside),
        (pickle.dumps([np.eye(3, dtype=int)]), inside),
        (pickle.dumps([np.arange(3)]).replace(b"K\x03\x85", b"K\x04\x85"), "read as a pickle"),
        (pickle.dumps({"a": 1}), f"has a dict, {others}"),
        (pickle.dumps([[1], ["a"]]), inside),
        (pickle.dumps([[2**70]]), inside),
        (pickle.dumps([[2**40]]), "numbers that are no int32 in column"),
        (pickle.dumps([[1], [2]])[:-2], r"cannot be read as a pickle \(it ends too early\)"),
        (pickle.dumps([[1], [2]]) + b".", r"cannot be read as a pickle \("),
        (pickle.dumps([[1], [2]]) + pickle.dumps([1]), "the list of padding is of other rows"),
        (pickle.dumps([[1], [2]]) + pickle.dumps([1, -2]), "the list of padding is of other rows"),
        (pickle.dumps([[1]]) + 2 * pickle.dumps([1]), "the list of padding is of other rows"),
        (pickle.dumps([[1]]) + pickle.dumps(1), "the list of padding is of other rows"),
        (b"text", r"cannot be read as a pickle \(.*\); get the file again, or, of rows, run token"),
        (b"", r"cannot be read as a pickle \("),
        (pickle.dumps(7), f"has a int, {others}"),
        (pickle.dumps([1, 2]), f"has int, {inside} rows"),
        (pickle.dumps([[[1]], [2, 3]]), inside),
        (pickle.dumps([[[1], 2]]), r"cannot be read as a pickle \("),
        (b"\x80\x02e.", r"cannot be read as a pickle \("),
    ]:
        path.write_bytes(data)
        with pytest.raises(RowsError, match=message):
            read(path)
    # What other programs write: another protocol, one list twice, places in the memo of any number,
    # which take no memory here.
    for data in (pickle.dumps([[1], row := [2], row], 0), b"\x80\x02]r\xff\xff\xff\x0f."):
        path.write_bytes(data)
        assert len(read(path)) == 3 * (data[:1] == b"(")
    # What the program has loaded as an extension; memory that is claimed; and lists that are in
    # lists any number of times, or texts, of which NumPy would make arrays.
    deep: list[Any] = [1]
    for _ in range(40):
        deep = [deep, deep]
    copyreg.add_extension("builtins", "open", 200)
    pickle.loads(b"\x80\x02\x82\xc8.")
    call = pickle.dumps((str(ran), "w"), 2)[2:-1]
    tracemalloc.start()
    path.write_bytes(b"\x80\x02]\x82\xc8" + call + b"Ra.")
    with pytest.raises(RowsError, match="has an opcode which is in no pickle of rows"):
        read(path)
    for data in (
        pickle.dumps([[True, 1]]),
        b"\x80\x05]\x96" + (1 << 33).to_bytes(8, "little") + b"a.",
        pickle.dumps([["x" * 10_000, *["y"] * 10_000]]), pickle.dumps([deep, np.arange(3)]),
    ):
        path.write_bytes(data)
        with pytest.raises(RowsError, match="cannot be read as a pickle"):
            read(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()
    copyreg.remove_extension("builtins", "open", 200)
    for protocol in range(2, 6):  # as NumPy writes them
        path.write_bytes(pickle.dumps([np.arange(3), np.arange(2, dtype=np.uint16)], protocol))
        assert read(path) == [{"input_ids": [0, 1, 2]}, {"input_ids": [0, 1]}]
    path.unlink()
    with pytest.raises(RowsError, match=r"read as a pickle .*No such file or directory"):
        read(path)
    assert not ran.exists()


def test_long_rows_are_checked_some_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"input_ids": {[7] * 300_000}}}\n' * 40)
    tracemalloc.start()
    (found,) = verify(tmp_path)
    assert "40 rows, 12,000,000 values" in found.text
    assert tracemalloc.get_traced_memory()[1] < 40 << 20  # all would be 48 MB, twice
    tracemalloc.stop()
