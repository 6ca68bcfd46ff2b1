"""Grades and sensitivity classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Grade(IntEnum):
    """A verdict, from good to bad: of two grades the larger is the worse, and the worse one counts.

    Unknown is a state of its own. It is never green, and missing data is never zero.
    """

    GREEN = 0
    UNKNOWN = 1
    YELLOW = 2
    RED = 3

    @property
    def label(self) -> str:
        """``green``, ``unknown``, ``yellow`` or ``red``."""
        return self.name.lower()

    @property
    def letter(self) -> str:
        """``G``, ``?``, ``Y`` or ``R``: for where a word is too long, and for those who see no colours."""
        return "?" if self is Grade.UNKNOWN else self.name[0]


class Sensitivity(IntEnum):
    """How much slowdown a job bears. The value is its column in arrays that have a sensitivity axis."""

    CRITICAL = 0
    SENSITIVE = 1
    TOLERANT = 2

    @property
    def label(self) -> str:
        """``critical``, ``sensitive`` or ``tolerant``."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> "Sensitivity":
        """Return the class called ``text``: its name in any case, or the talk's C, B, A.

        Raises:
            ValueError: if there is none; the text lists those there are.
        """
        key = text.strip().upper()
        found = LETTERS.get(key)
        if found is not None:
            return found
        try:
            return cls[key]
        except KeyError:
            names = ", ".join(s.label for s in cls)
            raise ValueError(f"no sensitivity is called {text!r}; there are {names} (or C, B, A)") from None


#: The letters of Bryan Oliver's talk.
LETTERS: Mapping[str, Sensitivity] = {
    "C": Sensitivity.CRITICAL,
    "B": Sensitivity.SENSITIVE,
    "A": Sensitivity.TOLERANT,
}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which predicted slowdown a sensitivity class calls a node yellow or red.

    Attributes:
        yellow: relative time from which it is yellow (1.05 takes 5 % longer than typical).
        red: relative time from which it is red.
        unknown_as: the grade whose score an unknown node gets for this class; ``None`` scores below yellow.
    """

    yellow: float
    red: float
    unknown_as: Grade | None


DEFAULT_THRESHOLDS: Mapping[Sensitivity, Thresholds] = {
    Sensitivity.CRITICAL: Thresholds(1.02, 1.05, None),
    Sensitivity.SENSITIVE: Thresholds(1.05, 1.15, Grade.YELLOW),
    Sensitivity.TOLERANT: Thresholds(1.25, 2.00, Grade.GREEN),
}
