"""The training loop of examples/: it learns, continues exactly, and says what is wrong."""

import json
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import processes
import pytest

from preprocess import build

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = "".join(f"{i} plus {i} is {2 * i}, and one more is {2 * i + 1}.\n" for i in range(900))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built corpus: two documents to train on, one to validate on, 400 tokens."""
    directory = tmp_path_factory.mktemp("data")
    half = len(TEXT) // 2
    for name, text in (
        ("train", f"{TEXT[:half]}<|endoftext|>{TEXT[half:]}"), ("val", TEXT[half // 2 : half]),
    ):  # fmt: skip
        (directory / f"{name}.txt").write_text(text)
    build(train=directory / "train.txt", val=directory / "val.txt", out=directory, vocab_size=400)
    return directory


@pytest.fixture
def train_gpt(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    torch.set_num_threads(1)  # such small matrices gain nothing from more
    import train_gpt

    return train_gpt


@pytest.fixture
def options(data: Path, tmp_path: Path) -> list[str]:
    """A model that takes milliseconds a step."""
    settings = {
        "data": data, "checkpoint": tmp_path / "state" / "gpt.pt", "batch-size": 8,
        "context-length": 16, "n-layers": 1, "n-heads": 2, "width": 16, "max-iters": 40,
        "report-every": 10, "validation-windows": 12, "sample-tokens": 20,
    }
    return [f"--{key}={value}" for key, value in settings.items()]


def reports(text: str) -> list[str]:
    """The lines of a run's output that report losses, without the rate."""
    return re.findall(r"^(step .*), [\d,]+ tokens/s$", text, re.MULTILINE)


def test_it_learns_and_writes(
    train_gpt: ModuleType, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_gpt.main([*options, "--max-iters=150", "--report-every=50"]) == 0
    text = capsys.readouterr().out
    entropy = float(re.findall(r"unigram entropy of val: ([\d.]+) nats", text)[0])
    found = re.findall(
        r"step (\d+)/150: train loss [\d.]+ .*, val loss ([\d.]+) \(([\d.]+) b", text
    )
    assert [step for step, _, _ in found] == ["50", "100", "150"]
    assert float(found[-1][1]) < 0.8 * entropy
    assert len(text.split("a sample:\n")[1].split()) > 3


def test_killed_and_continued_is_the_same_run(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [EXAMPLES / "train_gpt.py", *options]
    whole = reports(processes.run(*command, f"--checkpoint={tmp_path / 'whole.pt'}").stdout)
    assert len(whole) == 4
    seen = []
    with processes.start(*command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen += reports(line)
            if len(seen) == 2:
                process.send_signal(signal.SIGKILL)
                break
    # The kill may come after further reports: the second run goes on from the saved one.
    second = reports(processes.run(*command).stdout)
    assert second
    assert second == whole[-len(second) :]
    assert seen == whole[:2]


def test_state_of_other_settings_is_not_continued(
    train_gpt: ModuleType, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    train_gpt.main(options)
    assert train_gpt.main([*options, "--learning-rate=0.1"]) == 1
    message = r"gpt\.pt: saved by a run with other settings \(learning_rate was 0\.004, is 0\.1\)"
    assert re.search(message, capsys.readouterr().err)
    assert train_gpt.main([*options, "--learning-rate=0.1", "--overwrite"]) == 0


class Bomb:
    """Unpickling it writes a file: what a checkpoint from a stranger could do."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path(self.path), "boom")


def test_state_from_a_stranger_runs_no_code(
    train_gpt: ModuleType, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state" / "gpt.pt"
    path.parent.mkdir()
    with open(path, "wb") as file:
        torch.save({"identity": Bomb(tmp_path / "boom")}, file)
    assert train_gpt.main(options) == 1
    assert "cannot be read as a saved state" in capsys.readouterr().err
    assert not (tmp_path / "boom").exists()
    path.write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    assert train_gpt.main(options) == 1
    assert not (tmp_path / "boom").exists()


def test_the_log_of_a_stopped_run_is_that_of_a_whole_one(
    train_gpt: ModuleType, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole.csv", tmp_path / "logs" / "stopped.csv"
    train_gpt.main([*options, f"--checkpoint={tmp_path / 'whole.pt'}", f"--csv_log={whole}"])
    lines = whole.read_text().splitlines()
    assert lines[0] == "step,train_loss,train_bits_per_byte,val_loss,val_bits_per_byte"
    assert [line.split(",")[0] for line in lines[1:]] == ["10", "20", "30", "40"]
    save = train_gpt.Run.save

    def interrupted(run: Any) -> None:
        if run.step == 30:  # the line is written, the state is not
            raise KeyboardInterrupt
        save(run)

    with monkeypatch.context() as patch:
        patch.setattr(train_gpt.Run, "save", interrupted)
        assert train_gpt.main([*options, f"--csv-log={stopped}"]) == 130
    assert len(stopped.read_text().splitlines()) == 4
    assert train_gpt.main([*options, f"--csv-log={stopped}"]) == 0
    assert stopped.read_text() == whole.read_text()


FILES = {
    "file": b"", "damaged.pt": b"PK\3\4damaged", "empty.csv": b"", "names.csv": b"a,b\n",
    "values.csv": b"step,train_loss\nx,1\n", "binary.csv": b"\xff\0\n",
    "name.toml": b"batch_sise = 4", "type.toml": b"batch_size = '4'", "cut.toml": b"batch_size =",
    "least.toml": b"batch_size = 0", "both.toml": b"epochs = 2\nmax_iters = 9",
}  # fmt: skip
# Arguments, and what follows "train_gpt.py: error: "; "...": and so on.
WRONG_USAGE = [
    ("--epochs -1", "--epochs should be an integer of at least 0; got -1"),
    ("--max-iters 0", "--max-iters should be an integer of at least 1; got 0"),
    ("--report-every 0", "--report-every should be an integer of at least 1; got 0"),
    ("--validation-windows 0", "--validation-windows should be an integer of at least 1; g"),
    ("--n-heads 0", "--n-heads should be an integer of at least 1; got 0"),
    ("--learning-rate 0", "--learning-rate should be a finite number of at least 1e-09; got 0"),
    ("--weight-decay nan", "--weight-decay should be a finite number of at least 0; got nan"),
    ("--batch-size 1.5", "argument --batch-size/--batch_size: invalid int value: '1.5'"),
    ("--width 130", "--width should be a multiple of 2 * n_heads, 8; got 130"),
    ("--n-heads 3", "--width should be a multiple of 2 * n_heads, 6; got 128"),
    ("--device gpu", "--device should be cpu, cuda, mps or another one that PyTorch has on "),
    ("--device meta", "--device should be cpu, cuda, mps or another one that PyTorch has on "),
    ("--epochs 2 --max-iters 9", "--epochs 2 and --max-iters 9 both say when to end; give on"),
    ("--config=name.toml", "...['batch_sise'] are no settings; there are data, name,"),
    ("--config=type.toml", "...batch_size should be int; got '4'"),
    ("--config=cut.toml", "...cannot be read as TOML"),
    ("--config=least.toml", "--batch-size should be an integer of at least 1; got 0"),
    ("--config=both.toml", "--epochs 2 and --max-iters 9 both say when to end"),
]
REFUSED = [
    ("--name=other", "...other_train.bin: there is no such file; build it"),
    ("--data=.", "...tokenizer.json"),
    ("--checkpoint=damaged.pt", "damaged.pt: cannot be read as a saved state"),
    ("--wandb-project=p", "...pip install wandb"),
    *((f"{option}={path}", f"{path}: cannot be written (...{reason}); choose another {option}")
      for option in ("--checkpoint", "--csv-log")
      for path, reason in (("directory", "Is a directory"), ("file/x", "is no directory"))),
    *((f"--overwrite --csv-log={name}",
       f"{name}: is no log of losses, whose first line is step,")
      for name in FILES if name.endswith(".csv")),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [*((x, 2, y) for x, y in WRONG_USAGE), *((x, 1, y) for x, y in REFUSED)],
)
def test_what_is_refused_with_one_line(
    train_gpt: ModuleType, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: str, code: int, message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    try:
        ended = train_gpt.main([*options * (code == 1), *arguments.split()])
    except SystemExit as stopped:
        ended = stopped.code
    streams = capsys.readouterr()
    assert ended == code
    assert not reports(streams.out)
    *usage, error = streams.err.splitlines()
    assert not usage or usage[0].startswith("usage: train_gpt.py ")
    expected = f"train_gpt.py: error: {message}".split("...")
    assert re.match(".*".join(map(re.escape, expected)), error)
    assert all((tmp_path / name).read_bytes() == content for name, content in FILES.items())


def test_options_win_over_the_configuration_file(train_gpt: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("batch_size = 4\nlearning_rate = 1\nmax_iters = 7\n")
    (tmp_path / "a.json").write_text('{"batch_size": 4, "learning_rate": 1, "max_iters": 7}')
    for name in ("a.toml", "a.json"):
        settings, overwrite = train_gpt.parse_arguments(
            [f"--config={tmp_path / name}", "--max-iters=9", "--overwrite"]
        )
        assert (settings.batch_size, settings.learning_rate, settings.max_iters) == (4, 1.0, 9)
        assert settings.width == train_gpt.Settings().width
        assert overwrite


def test_weights_and_biases_is_logged_to_if_asked(
    train_gpt: ModuleType, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[int, dict[str, float]] = {}
    fake = SimpleNamespace(
        log=lambda values, step: logged.update({step: values}), finish=lambda: None
    )
    fake.init = lambda **_: fake
    monkeypatch.setitem(sys.modules, "wandb", fake)
    assert train_gpt.main([*options, "--wandb-project=p", "--overwrite"]) == 0
    assert list(logged) == [10, 20, 30, 40]
    assert json.dumps(sorted(logged[10])) == json.dumps(
        ["train/bits_per_byte", "train/loss", "val/bits_per_byte", "val/loss"]
    )
