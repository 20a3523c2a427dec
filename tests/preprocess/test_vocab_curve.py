"""`vocab-curve`: every size is that of a build of its own; the recommendation, plot and errors.

And `--vocab-size auto`: the recommended size is built as if it had been given.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import trained

from preprocess import (
    PipelineConfig,
    SettingsError,
    TokenFileError,
    build,
    cli,
    verify,
    vocab_curve,
)
from preprocess.options import VOCABULARY_SIZES

END = "<|endoftext|>"


def text_of(seed: int) -> str:
    """Documents of every script, of which some spell special tokens."""
    words = " ".join(trained.documents()).split()
    documents = [" ".join(words[i : i + 12 + seed]) for i in range(seed, len(words), 9 + seed)]
    return END.join(f"{x} <|pad|> <|begin|>" if i % 7 == 0 else x for i, x in enumerate(documents))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("text")
    train, val = text_of(0), text_of(3)
    (directory / "train.txt").write_text(train)
    (directory / "val.txt").write_text(val)
    # Special-token text is inside of documents here.
    for name, text in (("train", train), ("val", val)):
        lines = [json.dumps({"text": x.replace("<|pad|>", END)}) for x in text.split(END)]
        (directory / f"{name}.jsonl").write_text("\n".join([*lines, *lines[:9]]))
    return directory


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("txt", {}),
        ("txt", {"val_fraction": 0.3, "tie_break": "huggingface", "pattern": "o200k"}),
        ("jsonl", {"special_tokens": ["<|pad|>"], "begin_of_text": "<|begin|>"}),
        ("jsonl", {"val_fraction": 0.2, "min_frequency": 5, "deduplicate": True}),
        ("jsonl", {"end_of_text": "<|begin|>", "strip": True, "min_length": 20, "unit_size": 999}),
    ],
)
def test_every_size_is_that_of_a_build(
    directory: Path, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    own = () if "val_fraction" in options else directory / f"val.{suffix}"
    more = {"val": own, **options}
    sizes = [260, 300, 512, 777]
    found = vocab_curve(directory / f"train.{suffix}", sizes=sizes, width=64, layers=2, **more)
    assert [each["vocab_size"] for each in found["sizes"]] == sizes
    for each in found["sizes"]:
        built = build(
            train=directory / f"train.{suffix}", vocab_size=each["vocab_size"],
            out=tmp_path / str(each["vocab_size"]), **more,
        )
        val = built.manifests["val"]
        assert each["tokens"] == val.n_tokens
        assert found["text"] == {"documents": val.n_documents, "bytes": val.n_bytes}
        assert each["bytes_per_token"] == val.n_bytes / val.n_tokens
        embedding, others = each["vocab_size"] * 64, 12 * 2 * 64 * 64
        assert each["embedding_parameters"] == embedding
        assert each["embedding_share"] == pytest.approx(embedding / (embedding + others))
        assert each["untied_share"] == pytest.approx(2 * embedding / (2 * embedding + others))
        compute = val.n_tokens / val.n_bytes * (others + embedding)
        assert each["multiply_adds_per_byte"] == pytest.approx(compute)
    best = min(found["sizes"], key=lambda each: each["multiply_adds_per_byte"])
    assert found["vocab_size"] == best["vocab_size"]


def test_workers_and_units_change_nothing(directory: Path) -> None:
    path, options = directory / "train.txt", {"val_fraction": 0.3, "sizes": "300,700"}
    found = vocab_curve(path, workers=1, **options)
    assert vocab_curve(path, workers=3, unit_size=1000, memory_limit="420MB", **options) == found
    assert vocab_curve([path], **options | {"sizes": [700, 300, "300"]}) == found


def test_larger_models_take_larger_vocabularies(directory: Path) -> None:
    path, chosen = directory / "train.txt", []
    for width, layers in [(16, 1), (128, 4), (4096, 40)]:
        options = {"sizes": "270,300,400,600,900", "width": width, "layers": layers}
        found = vocab_curve(path, val_fraction=0.2, **options)
        chosen.append(found["vocab_size"])
        of_size = {x["vocab_size"]: x["multiply_adds_per_byte"] for x in found["sizes"]}
        reason = found["reason"]
        begins = f"{chosen[-1]:,} tokens: of the sizes from 270 to 900, the least compute per byte "
        assert reason.startswith(begins)
        assert f"for {layers} layers of width {width:,}, which is tokens per byte x" in reason
        for size, more in re.findall(r"; ([\d,]+) take ([\d.]+)% more", reason):
            other = of_size[int(size.replace(",", ""))]
            assert float(more) == pytest.approx(100 * other / of_size[chosen[-1]] - 100, abs=0.051)
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1] == 900


def test_sizes_that_the_text_does_not_give_are_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(END.join(f"abab abab {i}" for i in range(40)))
    found = vocab_curve(tmp_path / "a.txt", val_fraction=0.4, sizes=[258, 300, "4k"])
    sizes = [each["vocab_size"] for each in found["sizes"]]
    assert sizes[0] == 258
    assert len(sizes) == 2
    assert 258 < sizes[1] < 300
    built = build(
        train=tmp_path / "a.txt", val_fraction=0.4, vocab_size=4000, out=tmp_path / "out"
    )
    assert built.tokenizer.vocab_size == sizes[1]
    assert found["sizes"][1]["tokens"] == built.manifests["val"].n_tokens


def test_the_command_prints_a_table_or_json(directory: Path, capsys: Any) -> None:
    arguments = ["vocab-curve", str(directory / "train.txt"), "--val", str(directory / "val.txt")]
    arguments += ["--sizes", "270,1k", "--sizes", "500", "--width=32", "--layers", "3"]
    assert cli.run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["vocab_size"] for each in found["sizes"]] == [270, 500, 1000]
    assert (found["width"], found["layers"]) == (32, 3)
    assert cli.run(arguments) == 0
    head, *rows, text, recommended = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == (
        "tokens bytes/token embedding of the model if untied compute/byte size"
    )
    for row, each in zip(rows, found["sizes"], strict=True):
        shown = row.replace(",", "").split()
        assert shown[0] == str(each["tokens"])
        assert shown[1] == f"{each['bytes_per_token']:.3f}"
        assert shown[2] == str(32 * each["vocab_size"])
        assert shown[-1] == str(each["vocab_size"])
    assert text == (
        f"held-out text: {found['text']['documents']:,} documents,"
        f" {found['text']['bytes']:,} bytes"
    )
    assert recommended == f"recommended: {found['reason']}"


def test_standard_input(directory: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, options = directory / "train.txt", {"val_fraction": 0.3, "sizes": 400}
    expected = vocab_curve(path, **options)
    with open(path) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert vocab_curve("-", **options) == expected


def test_default_sizes(capsys: Any) -> None:
    assert VOCABULARY_SIZES == (1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
    assert cli.run(["vocab-curve", "--help"]) == 0
    assert "which is encoded and not trained on" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [256, 300]}, "sizes 256 is below 257, the 256 bytes and 1 special tokens; giv"),
        ({"sizes": []}, "sizes has no size; give at least one, such as 8k,32k"),
        ({"sizes": "8m"}, "from 256 to 536,870,912, such as 8k,32k; got '8m'"),
        ({"sizes": "9" * 5000}, "from 256 to 536,870,912, such as 8k,32k; got '999"),
        ({"sizes": ["8k", "9" * 5000 + "k"]}, "from 256 to 536,870,912, such as 8k,32k; got ['8k'"),
        ({"sizes": 255}, "from 256 to 536,870,912, such as 8k,32k; got 255"),
        ({"sizes": 2.5}, "from 256 to 536,870,912, such as 8k,32k; got 2.5"),
        ({"val_fraction": 0}, "val_fraction: should be a number greater than 0 and less than 1"),
        ({"val_fraction": 0.5, "val": "x"}, "held-out text is of files of its own, or out of PATH"),
        ({"plot": "a.txt"}, "plot a.txt is none of .svg, .png, .pdf; give it one of these suff"),
        ({"plot": "none/a.svg"}, "plot none/a.svg is in a directory that does not exist; make "),
        ({"width": 0}, "width: should be a whole number of at least 1; got 0"),
    ],
)
def test_wrong_options_are_named(directory: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        vocab_curve(directory / "train.txt", **options)
    assert message in str(caught.value)


def test_a_directory_is_no_plot(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "curve.svg").mkdir()
    with pytest.raises(SettingsError, match="is a directory, or in one that cannot be written to"):
        vocab_curve(directory / "train.txt", plot=tmp_path / "curve.svg")


def test_text_without_held_out_documents(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.txt").write_text("only one document, which is trained on")
    assert cli.run(["vocab-curve", str(tmp_path / "a.txt"), "--sizes", "300"]) == 1
    assert "val would have no documents: none of the 1 in " in capsys.readouterr().err
    (tmp_path / "b.txt").write_text(END)
    arguments = ["vocab-curve", str(tmp_path / "a.txt"), "--val", str(tmp_path / "b.txt")]
    assert cli.run([*arguments, "--sizes", "270"]) == 1
    assert "b.txt: no document for val: " in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(
    directory: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [x for x in sys.modules if x.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = str(directory / "train.txt")
    plot = tmp_path / "a.svg"
    assert cli.run(["vocab-curve", path, "--sizes", "300", "--plot", str(plot)]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(
        "plots are drawn with matplotlib, which is not installed; install it: pip install"
        " 'tokenmill[plot]'"
    )
    assert vocab_curve(path, sizes=300, val_fraction=0.2)["vocab_size"] == 300
    assert not plot.exists()


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="needs the extra `plot`")
@pytest.mark.parametrize(
    ("suffix", "begin"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")]
)
def test_plots(directory: Path, tmp_path: Path, suffix: str, begin: bytes) -> None:
    contents = []
    for name in ("a", "a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        found = vocab_curve(
            directory / "train.txt", val_fraction=0.2, sizes="300,400,600", plot=path
        )
        contents.append(path.read_bytes())
    assert contents[0].startswith(begin)
    assert contents[0] == contents[1] == contents[2]
    assert {each.name for each in tmp_path.iterdir()} == {f"a.{suffix}", f"b.{suffix}"}
    if suffix == "svg":
        # Text is drawn as shapes, with a comment that has it.
        shown = contents[0].decode()
        assert all(f"<!-- {each['vocab_size']:,} -->" in shown for each in found["sizes"])
        assert "<!-- bytes per token of held-out text -->" in shown


# --- the size that is chosen ---


@pytest.mark.parametrize("options", [{"width": 16, "layers": 1}, {"width": 4096, "layers": 40}])
@pytest.mark.parametrize("has_val", [True, False])
def test_the_recommended_size_is_built(
    directory: Path, tmp_path: Path, has_val: bool, options: dict[str, int]
) -> None:
    more: dict[str, Any] = {"deduplicate": True, "val_fraction": 0.2}
    if has_val:
        more = {"val": directory / "val.jsonl", "begin_of_text": "<|begin|>"}
    path = directory / "train.jsonl"
    built = build(train=path, out=tmp_path / "a", vocab_size="auto", **options, **more)
    found = vocab_curve(path, **options, **more)
    assert built.tokenizer.vocab_size == found["vocab_size"]
    assert (found["vocab_size"] == 1000) == (options["width"] == 16)
    own = build(train=path, out=tmp_path / "b", vocab_size=found["vocab_size"], **more)
    names = ["train.bin", "val.bin", "train.docs", "tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert own.tokenizer.fingerprint == built.tokenizer.fingerprint
    again = build(train=path, out=tmp_path / "a", vocab_size="auto", **options, **more)
    assert "up to date" in again.lines[0]
    with pytest.raises(TokenFileError, match="and is 7"):
        build(train=path, out=tmp_path / "a", vocab_size="auto", **options | {"layers": 7}, **more)


def test_a_chosen_tokenizer_is_repaired(directory: Path, tmp_path: Path) -> None:
    build(
        train=directory / "train.txt", val=directory / "val.txt", out=tmp_path, vocab_size="auto"
    )
    before = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").unlink()
    assert all(each.sound for each in verify(tmp_path, repair=True))
    assert (tmp_path / "tokenizer.json").read_bytes() == before


def test_train_holds_documents_out(directory: Path, tmp_path: Path, caplog: Any) -> None:
    path, out = directory / "train.txt", tmp_path / "a.json"
    arguments = ["train", str(path), "--vocab-size", "auto", "--val-fraction", "0.2", "--out"]
    with caplog.at_level("INFO"):
        assert cli.run([*arguments, str(out), "--width", "64", "--layers", "2"]) == 0
    found = vocab_curve(path, val_fraction=0.2, width=64, layers=2)
    assert f"vocabulary: {found['reason']}" in caplog.text
    build(train=path, val_fraction=0.2, out=tmp_path / "b", vocab_size=found["vocab_size"])
    assert out.read_bytes() == (tmp_path / "b" / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--vocab-size 300 --width 8", "--width has no effect without --vocab-size auto; gi"),
        ("--layers 8", "--layers has no effect without --vocab-size auto; gi"),
        ("--vocab-size all", "should be a whole number from 256 to 536,870,912, or 'auto'; g"),
        ("--vocab-size auto --val-fraction 0", "is chosen by validation text, and --val-fract"),
        ("--vocab-size auto --executor ray", "--vocab-size auto is chosen on one machine, not"),
    ],
)
def test_auto_is_refused_where_it_cannot_work(
    directory: Path, arguments: str, message: str, capsys: Any
) -> None:
    assert cli.run(["--train", str(directory / "train.txt"), *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_text_too_small_for_the_largest_size_is_told_without_a_size_that_nobody_gave(
    tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "a.txt").write_text(END.join(f"abab abab {i}" for i in range(40)))
    built = build(
        train=tmp_path / "a.txt", val_fraction=0.4, vocab_size="auto", out=tmp_path / "out"
    )
    n = built.tokenizer.vocab_size
    (said,) = [x.getMessage() for x in caplog.records if x.levelname == "WARNING"]
    assert said.endswith(f"has {n} tokens, of 128000 at most; a larger one needs more text")


def test_auto_is_not_for_a_configuration(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="vocab_size auto is chosen in a build of one dataset"):
        PipelineConfig(
            datasets=[{"data_files": directory / "train.txt"}], output_path=tmp_path,
            tokenizer={"vocab_size": "auto"},
        )
