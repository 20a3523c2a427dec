"""Options of builds on several machines.

Annotations are not postponed in this module, see `preprocess.settings.schema`.
"""

from dataclasses import dataclass

from preprocess.settings.options import Count, Index, Settings, SettingsError, option


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TaskSettings(Settings):
    """Options for a build that is divided among tasks of a scheduler."""

    task_index: Index | None = option(
        None, "Build only part N of --task-count parts, counted from 0, with the given tokenizer;"
        " `merge` joins them.", default_text="all",
    )
    task_count: Count | None = option(None, "Number of parts that the text is divided into.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_index is None:
            return
        if self.task_count is None:
            raise SettingsError(
                "task_index is the number of one of several parts; say how many there are"
                " (--task-count)"
            )
        if self.task_index >= self.task_count:
            raise SettingsError(
                f"task_index is {self.task_index:,}, and parts are counted from 0 to"
                f" {self.task_count - 1:,} (task_count {self.task_count:,}); correct one of them"
            )
