"""Every name of ours that a docstring, comment or document quotes is there."""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("bpe", "preprocess")
# `bpe.module.name`, `preprocess.name(...)`, ``bpe.name``: from a backtick to the end of the name.
_QUOTED = re.compile(r"`((?:bpe|preprocess)(?:\.\w+)+)")
# `Class.attribute`.
_ATTRIBUTE = re.compile(r"`([A-Z]\w*)\.(\w+)")
# But for this file, which quotes what is not there.
_FILES = sorted(
    [
        path
        for package in (*PACKAGES, "tests", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if path != Path(__file__)
    ]
    + [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
)  # fmt: skip


def exists(name: str) -> bool:
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for i, part in enumerate(parts[n:]):
            fields = getattr(found, "__annotations__", {})
            if hasattr(found, part):
                found = getattr(found, part)
            else:
                # A field without a default, or what `__init__` sets, has a name and no value yet.
                is_last = i == len(parts[n:]) - 1
                return is_last and isinstance(found, type) and part in fields
        return True
    return False


def classes() -> dict[str, list[type]]:
    """The classes of both packages by name; two may have the same one."""
    found: dict[str, list[type]] = {}
    for path in _FILES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] in PACKAGES and path.suffix == ".py" and parts[-1] != "__main__":
            try:
                module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
            except ModuleNotFoundError as error:
                assert error.name == "torch"  # of an extra
                continue
            for name, value in vars(module).items():
                if inspect.isclass(value) and value.__module__.partition(".")[0] in PACKAGES:
                    found.setdefault(name, []).append(value)
    return found


CLASSES = classes()


def test_every_package_to_install_is_ours() -> None:
    """A former or mistyped name in `pip install 'NAME[EXTRA]'` would install somebody else's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*project["optional-dependencies"], "{extra}"}
    found = set()
    for path in [*_FILES, *(ROOT / "examples").glob("*.py")]:
        if "tests" not in path.parts:
            # Text in the source code may be continued in the next line.
            text = re.sub(r'"\s*"', "", path.read_text("utf-8"))
            commands = re.findall(r"pip install (?:-U )?'?([\w.-]+)(?:\[([\w{},]+)\])?", text)
            found |= {(name.rstrip("."), extra) for name, of in commands for extra in of.split(",")}
    assert {name for name, _ in found} == {project["name"], "", "wandb"}  # "": a checkout
    assert {extra for _, extra in found} <= extras | {""}
    assert len(found) > 7


def test_the_former_name_is_gone() -> None:
    former = "token" + "bin"
    allowed = {"CHANGELOG.md": 1, "preprocess/dataset/manifest.py": 2}
    found = {}
    for path in [*_FILES, *(ROOT / "examples").glob("*.py"), ROOT / "pyproject.toml"]:
        n = path.read_text("utf-8").lower().count(former)
        if n:
            found[str(path.relative_to(ROOT))] = n
    found.pop("tests/preprocess/test_token_file.py")  # a manifest of that time
    assert found == allowed


def has(owner: type, name: str) -> bool:
    """Whether a class has an attribute, be it one that `__init__` sets."""
    return (
        hasattr(owner, name)
        or any(name in getattr(base, "__annotations__", {}) for base in owner.__mro__)
        or f"self.{name}" in inspect.getsource(owner)
    )


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_quoted_names_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    assert {name for name in _QUOTED.findall(text) if not exists(name)} == set()
    missing = {
        f"{owner}.{name}"
        for owner, name in _ATTRIBUTE.findall(text)
        if owner in CLASSES and not any(has(each, name) for each in CLASSES[owner])
    }
    assert missing == set()


def test_pages_that_code_names_exist() -> None:
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found |= set(re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text("utf-8")))
    assert len(found) > 5
    assert [page for page in sorted(found) if not (ROOT / page).exists()] == []
