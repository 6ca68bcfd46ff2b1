"""The settings in force: a file that is followed, or the defaults, and what the command line says on top."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from scorer.model.policy import Mode, Settings
from scorer.sources.settings_file import load_settings
from scorer.sources.yaml_file import WatchedFile


class SettingsSource:
    """Settings from a file that is followed, or the defaults, with the mode of the command line on top."""

    def __init__(self, path: Path | None, mode: Mode | None) -> None:
        """Read the file for the first time.

        Raises:
            ConfigError: if it is wrong.
        """
        self._mode = mode
        self._file = None if path is None else WatchedFile(path, load_settings)

    def current(self) -> Settings:
        """The settings in force."""
        settings = Settings() if self._file is None else self._file.current
        if self._mode is None:
            return settings
        return replace(settings, placement=replace(settings.placement, mode=self._mode))

    @property
    def problem(self) -> str:
        """Why the file as it is now was refused; empty if it was not."""
        return "" if self._file is None else self._file.problem

    def start(self, changed: Callable[[], None]) -> None:
        """Follow the file."""
        if self._file is not None:
            self._file.start(changed)

    def stop(self) -> None:
        """Stop following it."""
        if self._file is not None:
            self._file.stop()
