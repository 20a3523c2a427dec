"""The pictures of docs/how-it-works.md are what docs/pictures.py draws."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("docs_pictures", ROOT / "docs" / "pictures.py")
assert SPEC is not None
assert SPEC.loader is not None
pictures = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pictures)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_picture_is_what_the_script_draws(name: str) -> None:
    path = pictures.DIRECTORY / f"{name}.svg"
    assert path.read_text("utf-8") == pictures.PICTURES[name](), "run python docs/pictures.py"
    root = ElementTree.parse(path).getroot()
    texts = [each for each in root.iter() if each.tag.endswith("}text")]
    assert all(0 <= float(each.attrib["x"]) <= pictures.WIDTH for each in texts)
    assert all(0 <= float(each.attrib["y"]) <= float(root.attrib["height"]) for each in texts)


def test_every_picture_is_shown() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    files = {path.name for path in pictures.DIRECTORY.iterdir()}
    assert files == {f"{name}.svg" for name in pictures.PICTURES}
    assert all(f"](pictures/{name})" in page for name in files)


def test_screenshots_are_small() -> None:
    shown = (ROOT / "docs" / "index.md").read_text("utf-8")
    for name in ("view.png", "report.png"):  # of docs/screenshots.py
        assert 10_000 < (ROOT / "docs" / name).stat().st_size < 200_000
        assert f"]({name})" in shown
