"""Read corpus.yaml; messages name its lines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from preprocess.settings.corpus import PipelineConfig
from preprocess.settings.options import SettingsError

if TYPE_CHECKING:
    import yaml

_Key = tuple[str | int, ...]
_DEPTH = 4  # of keys with a line; aliases may refer to themselves


def read_corpus(options: Mapping[str, Any]) -> PipelineConfig:
    """Read the configuration in the given options of a build, and apply the other ones to it.

    Raises:
        SettingsError: As `load_config`; or an option belongs in the configuration.
    """
    config = options["config"]
    is_given = isinstance(config, PipelineConfig)
    if not is_given and not isinstance(config, str | os.PathLike):
        raise SettingsError(f"config: should be a path or a PipelineConfig; got {config!r:.100}")
    config = copy(config) if is_given else load_config(Path(os.fspath(config)))
    config.override({
        name: value
        for name, value in options.items()
        if name not in ("config", "progress") and value is not None
    })
    return config


def load_config(path: Path) -> PipelineConfig:
    """Read the configuration of a corpus.

    Raises:
        SettingsError: The file is missing, is not YAML, or has wrong options.
    """
    import yaml

    if path.suffix not in (".yaml", ".yml"):
        raise SettingsError(
            f"{path}: expected a .yaml file that describes a corpus; text is given with --train"
        )
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8 at byte {error.start:,}; convert it") from None
    lines: dict[_Key, int] = {}
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _find_lines(node, (), lines, path)
        values = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SettingsError(f"{path}{line}: is not YAML ({error.problem}); correct it") from None
    except SettingsError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = " ".join(str(error).split())
        raise SettingsError(f"{path}: has a value that is not valid ({what}); correct it") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: expected sections, such as datasets; found {values!r}")

    def where(key: _Key) -> str:
        known = next(key[:n] for n in range(len(key), -1, -1) if key[:n] in lines)
        return f"{path}:{lines[known]}: "

    return PipelineConfig.from_mapping(values, where)


def _find_lines(node: yaml.Node, key: _Key, lines: dict[_Key, int], path: Path) -> None:
    """Note the line of every key and element; raise SettingsError if a key is repeated."""
    import yaml

    lines.setdefault(key, node.start_mark.line + 1)
    if len(key) == _DEPTH:
        return
    if isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _find_lines(value, (*key, number), lines, path)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner, line = (*key, str(name.value)), name.start_mark.line + 1
            if inner in lines:
                raise SettingsError(
                    f"{path}:{line}: {name.value}: is in line {lines[inner]} already; leave one out"
                )
            lines[inner] = line
            _find_lines(value, inner, lines, path)
