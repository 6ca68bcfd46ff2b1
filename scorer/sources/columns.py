"""Columns of samples that grow, and whose views stay as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scorer.model.evidence import SampleColumns

_DTYPES: Mapping[str, Any] = {
    "key": np.int32,
    "dimension": np.uint8,
    "at": np.float64,
    "value": np.float64,
    "status": np.uint8,
    "run": np.int32,
    "sm_clock": np.float32,
}


class Columns:
    """Parallel arrays with room to grow. Rows below ``size`` never change, so views of them can be handed out."""

    def __init__(self, capacity: int = 1024) -> None:
        """Begin empty, with room for ``capacity`` rows."""
        self.size = 0
        self._arrays: dict[str, NDArray[Any]] = {name: np.empty(capacity, t) for name, t in _DTYPES.items()}

    def extend(self, **columns: Sequence[float] | NDArray[Any]) -> None:
        """Add rows: one sequence a column, all of one length."""
        count = len(columns["at"])
        need = self.size + count
        capacity = len(self._arrays["at"])
        for name, values in columns.items():
            if need > len(self._arrays[name]):
                # A new array each time: views of the old one stay as they are.
                grown = np.empty(max(need, capacity + capacity // 2), _DTYPES[name])
                grown[: self.size] = self._arrays[name][: self.size]
                self._arrays[name] = grown
            self._arrays[name][self.size : need] = values
        self.size = need

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name][: self.size]

    def replace(self, name: str, values: NDArray[Any]) -> None:
        """Put a new array in a column's place; it must have ``size`` rows."""
        self._arrays = {**self._arrays, name: values.astype(_DTYPES[name])}

    def take(self, rows: NDArray[Any]) -> None:
        """Keep only those rows, in that order, in new arrays."""
        self._arrays = {name: self[name][rows] for name in _DTYPES}
        self.size = len(self._arrays["at"])


def pick(columns: SampleColumns, rows: NDArray[np.intp]) -> SampleColumns:
    """Those rows of columns, in that order."""
    return SampleColumns(
        columns.gpu[rows],
        columns.dimension[rows],
        columns.at[rows],
        columns.value[rows],
        columns.status[rows],
        columns.run[rows],
        columns.sm_clock[rows],
    )
