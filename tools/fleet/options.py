"""Command lines in the manner of ``dcgmi``."""

from collections.abc import Sequence


class RefusedError(Exception):
    """DCGM refused; the text is what the tool prints."""


class Options:
    """A command line, option by option."""

    def __init__(self, arguments: Sequence[str], flags: frozenset[str], valued: frozenset[str]) -> None:
        self.values: dict[str, str] = {}
        queue = list(arguments)
        while queue:
            name, glued, value = queue.pop(0).partition("=")
            if name in flags and not glued:
                self.values[name] = ""
            elif name in valued:
                if not glued and not queue:
                    raise RefusedError(
                        f"PARSE ERROR: Argument: {name}\n             Missing a value for this argument!"
                    )
                self.values[name] = value if glued else queue.pop(0)
            else:
                raise RefusedError(f"PARSE ERROR: Argument: {name}\n             Couldn't find match for argument")

    def get(self, *names: str) -> str | None:
        """The value of the first of these options that was given; None if none was."""
        return next((self.values[n] for n in names if n in self.values), None)

    def has(self, *names: str) -> bool:
        """Whether any of these options was given."""
        return any(n in self.values for n in names)
