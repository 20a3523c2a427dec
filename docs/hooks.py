"""Hooks of `mkdocs build`: what the pages of the site have and the files in docs/ have not."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import bpe
import preprocess

sys.path.insert(0, str(Path(__file__).parent))
import errors

ROOT = Path(__file__).parent.parent
# A link to a file of the repository outside of docs/.
_TO_SOURCE = re.compile(r"\]\(\.\./([^)#]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add pages: of the public names, and with each file of the repository that a page links to."""
    pages = [Path(file.abs_src_path).read_text("utf-8") for file in files.documentation_pages()]
    for path in sorted({path for page in pages for path in _TO_SOURCE.findall(page)}):
        text = (ROOT / path).read_text("utf-8")
        language = Path(path).suffix.removeprefix(".")
        front = "---\nsearch: {exclude: true}\n---\n"
        content = f"{front}# {path}\n\n``````{language}\n{text}``````\n"
        files.append(File.generated(config, f"source/{path}.md", content=content))
    for package in (bpe, preprocess):
        name = package.__name__
        directives = (f"::: {package._MODULE_OF.get(x, 'bpe.errors')}.{x}" for x in public(package))
        content = f"# Names of {name}\n\n" + "\n\n".join(directives)
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def public(package: Any) -> list[str]:
    """The public names of a package, also those that need PyTorch."""
    return sorted({*package.__all__, *package._MODULE_OF}, key=str.lower)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Add the messages of errors; point links to files of the repository to their pages."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    if page.file.src_uri == "errors.md":
        markdown += errors.page()
    return _TO_SOURCE.sub(r"](source/\1.md)", markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    r"""Take the backslash from `\|` in cells of tables, where Markdown of GitHub needs it."""
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
