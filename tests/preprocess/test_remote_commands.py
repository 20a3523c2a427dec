"""Commands that read a dataset take its URL, and say what they say of a local one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torture
from remote_cases import BLOCK, flip, upload
from web_server import Page, web_server

from preprocess import TokenFileError, build
from preprocess.check.decode import decode_range
from preprocess.check.inspect import facts
from preprocess.check.report_numbers import report
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.export.write import export_tokens
from preprocess.settings import SettingsError
from preprocess.storage.remote import open_objects


@pytest.fixture(params=[None, 3000], ids=["whole", "shards"])
def places(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> tuple[Path, str]:
    """The directory of a dataset, and its URL."""
    texts = [f"document {i} of many, and more words " * (i % 9) for i in range(120)]
    (tmp_path / "text").write_text("<|endoftext|>".join(texts))
    build(train=tmp_path / "text", val_fraction=0.2, out=tmp_path / "local", vocab_size=270,
          shard_tokens=request.param)
    return tmp_path / "local", upload(tmp_path / "local", bucket)


def damaged(url: str) -> dict[str, str]:
    return {str(each.path): each.text for each in verify(url) if not each.sound}


def test_what_they_say_is_what_they_say_of_a_directory(
    places: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local, url = places
    assert damaged(url) == {}
    assert len(verify(f"{url}/val.json")) == len(verify(url)) // 2
    for name in ("train.json", "val.json"):
        for more in ({}, {"start": 5, "count": 700}):
            texts = [b"".join(decode_range(f"{x}/{name}", **more)) for x in places]
            assert texts[0] == texts[1]

        def without_path(found: dict[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in found.items() if key != "path"}

        numbers, theirs = (report(f"{x}/{name}")["datasets"][0] for x in places)
        assert without_path(numbers) == without_path(theirs)
        found = facts(f"{url}/{name}")
        assert without_path(found) == without_path(facts(local / name))
        assert found in facts(url)["token_files"]
    for source, out in zip((local, url), ("mine", "far"), strict=True):
        assert len(export_tokens(source, to="megatron", out=tmp_path / out)) == 2
    mine, far = (torture.contents(tmp_path / out) for out in ("mine", "far"))
    assert mine.keys() == far.keys()
    for name in mine:
        if name.endswith("export.json"):
            assert json.loads(far[name])["dataset"].startswith(f"{url}/")
        else:
            assert mine[name] == far[name]
    capsys.readouterr()
    for command in ("verify", "inspect"):
        assert run([command, url]) == 0
    assert run(["decode", f"{url}/val.json", "--count", "3"]) == 0
    assert f"{url}/train.json" in capsys.readouterr().out


def test_a_dataset_on_a_web_server_is_read_by_every_command(
    places: tuple[Path, str], tmp_path: Path
) -> None:
    local, _ = places
    files = {f"/{x.name}": Page(x.read_bytes()) for x in local.iterdir() if x.is_file()}
    with web_server(files) as url:
        for command in ("verify", "inspect", "decode"):
            assert run([command, f"{url}/train.json"]) == 0
        for command in (["export", "--to", "npy"], ["rows", "--format", "jsonl"]):
            for source, out in ((local / "train.json", "mine"), (f"{url}/train.json", "far")):
                assert run([*command, str(source), "--out", str(tmp_path / command[0] / out)]) == 0
            made = [torture.contents(tmp_path / command[0] / x) for x in ("mine", "far")]
            data = [{x: y for x, y in each.items() if x[-5:] != ".json"} for each in made]
            assert data[0] == data[1]
            assert data[0]
        rows = tmp_path / "rows" / "far"
        assert run(["verify", "--deep", str(rows)]) == 0
        next(rows.rglob("*.jsonl")).unlink()
        assert run(["verify", "--repair", str(rows)]) == 0
        assert torture.contents(rows) == made[1]


def test_damage_is_located_and_what_cannot_be_done_is_refused(places: tuple[Path, str]) -> None:
    local, url = places
    (first, *_), objects = sorted(local.glob("train*.bin")), open_objects(url.rpartition("/")[0])
    flip(url.rpartition("/")[0], f"data/{first.name}", BLOCK + 7)
    assert damaged(url)[f"{url}/{first.name}"].startswith("1 of ")
    objects.put(f"data/{first.name}", b"short")
    assert "bytes are expected and 5 were found" in damaged(url)[f"{url}/{first.name}"]
    objects.remove(f"data/{first.name}")
    assert damaged(url) == {f"{url}/{first.name}": "missing, though its manifest is there"}
    flip(url.rpartition("/")[0], "data/val.json", 60)
    objects.put("data/tokenizer.json", b"{}")
    found = damaged(url)
    assert found[f"{url}/tokenizer.json"] == "is not the tokenizer of the dataset, or was changed"
    assert len(found) >= 3
    objects.remove("data/tokenizer.json")
    with pytest.raises(TokenFileError, match=r"tokenizer\.json: missing, and no tokenizer was giv"):
        next(decode_range(f"{url}/train.json"))
    for command in (verify, facts):
        with pytest.raises(TokenFileError, match="no finished token file in this directory"):
            command(f"{url}/nothing")
    (finding,) = verify(f"{url}/nothing.bin")
    assert finding.text == "there is no such manifest; check the URL"
    for more in ({"deep": True}, {"repair": True}):
        with pytest.raises(SettingsError, match="is for files on this machine, and s3://"):
            verify(url, **more)


def test_a_place_whose_only_manifest_is_bad_is_described(bucket: str) -> None:
    for suffix in ("bin", "docs", "json"):
        open_objects(bucket).put(f"data/train.{suffix}", b"{}")
    (bad,) = facts(f"{bucket}/data")["bad_files"]
    assert bad["path"] == f"{bucket}/data/train.json"
    assert "not a manifest" in bad["text"]
