"""What is measured of a GPU, and in which unit."""

from enum import IntEnum


class Dimension(IntEnum):
    """One aspect of a GPU's speed. The value is its column in every array that has a dimension axis.

    For each of them a higher measured value is faster, so the slowdown of a value is ``median / value``.
    """

    COMPUTE = 0
    MEMORY = 1
    PCIE = 2
    NVLINK = 3
    FABRIC = 4
    NUMA = 5
    HOST = 6

    @property
    def label(self) -> str:
        """The name used in files, on the wire and in commands: ``compute``, ``memory``, ..."""
        return self.name.lower()

    @property
    def unit(self) -> str:
        """The unit that samples of this dimension carry."""
        return UNITS[self]

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """Return the dimension called ``text``, in any case.

        Raises:
            ValueError: if there is none; the text lists those there are.
        """
        try:
            return cls[text.strip().upper()]
        except KeyError:
            names = ", ".join(d.label for d in cls)
            raise ValueError(f"no dimension is called {text!r}; there are {names}") from None


#: Those that tell how fast GPUs are. The others tell of the machine around them, and are measured without any GPU.
OF_GPUS = (Dimension.COMPUTE, Dimension.MEMORY, Dimension.PCIE, Dimension.NVLINK, Dimension.FABRIC)

UNITS: dict[Dimension, str] = {
    Dimension.COMPUTE: "TFLOP/s",
    Dimension.MEMORY: "GB/s",
    Dimension.PCIE: "GB/s",
    Dimension.NVLINK: "GB/s",
    Dimension.FABRIC: "GB/s",
    Dimension.NUMA: "ratio",
    Dimension.HOST: "GB/s",
}
