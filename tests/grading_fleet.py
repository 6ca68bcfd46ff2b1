"""A small fleet for tests of the grader: every GPU measured, quiet and typical, unless a test says otherwise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scorer.model.dimension import Dimension
from scorer.model.evidence import (
    Evidence,
    GpuFacts,
    KernelMessage,
    LinkState,
    NodeFacts,
    Reading,
    Run,
    SampleColumns,
    SampleStatus,
)

NOW = 1_800_000_000.0
HOUR = 3600.0
TYPICAL: Mapping[Dimension, float] = {
    Dimension.COMPUTE: 780.0,
    Dimension.MEMORY: 2900.0,
    Dimension.PCIE: 50.0,
    Dimension.NVLINK: 466.0,
    Dimension.FABRIC: 370.0,
    Dimension.NUMA: 0.62,
    Dimension.HOST: 411.0,
}


@dataclass
class Fleet:
    """Nodes of eight GPUs; samples, and all else, are added by the test."""

    count: int = 6
    gpus: int = 8
    product: str = "NVIDIA H100 80GB HBM3"
    offered: int | None = None
    expected: int | None = None
    rows: list[tuple[int, int, float, float, int, int]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    kernel: list[KernelMessage] = field(default_factory=list)
    links: list[LinkState] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    health: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)
    scraped: dict[str, float] = field(default_factory=dict)
    sm_clocks: dict[int, float] = field(default_factory=dict)

    def quiet(self, ages_h: Sequence[float] = (50, 26, 2), skip: Iterable[tuple[int, int]] = ()) -> "Fleet":
        """Give every GPU typical samples, with a repeatable scatter of a third of a percent."""
        left_out = set(skip)
        rng = np.random.default_rng(7)
        for node in range(self.count):
            for gpu in range(self.gpus):
                for d in Dimension:
                    for age in ages_h:
                        factor = float(np.exp(rng.normal(0, 0.003)))
                        if (node, gpu) not in left_out:
                            self.sample(node, gpu, d, factor, age)
        return self

    def sample(
        self,
        node: int,
        gpu: int,
        dimension: Dimension = Dimension.COMPUTE,
        slowdown: float = 1.0,
        age_h: float = 1.0,
        status: SampleStatus = SampleStatus.OK,
        run: int = -1,
    ) -> None:
        value = TYPICAL[dimension] / slowdown if status is SampleStatus.OK else float("nan")
        self.rows.append((node * self.gpus + gpu, int(dimension), NOW - age_h * HOUR, value, int(status), run))

    def say(self, text: str, age_s: float = 600.0, node: int = 0) -> None:
        self.kernel.append(KernelMessage(f"n{node}", NOW - age_s, text))

    def read(
        self,
        field_id: int,
        value: float,
        gpu: int = 0,
        node: int = 0,
        age_s: float = 30.0,
        since_s: float = 600.0,
        previous: float = float("nan"),
    ) -> None:
        self.readings.append(
            Reading(f"n{node}", gpu, f"GPU-{node}-{gpu}", field_id, value, NOW - age_s, NOW - since_s, previous)
        )

    def facts(self) -> tuple[NodeFacts, ...]:
        return tuple(
            NodeFacts(
                f"n{i}",
                tuple(
                    GpuFacts(j, f"GPU-{i}-{j}", self.product, f"00000000:{0x10 + j:02X}:00.0", 81559, 700.0, "570.1")
                    for j in range(self.gpus)
                ),
                self.offered if i == 0 else None,
                self.expected if i == 0 else None,
            )
            for i in range(self.count)
        )

    def evidence(self, order: Sequence[int] | None = None, scale: float = 1.0) -> Evidence:
        rows = self.rows if order is None else [self.rows[i] for i in order]
        gpu, dimension, at, value, status, run = (list(c) for c in zip(*rows, strict=True)) if rows else ([],) * 6
        samples = SampleColumns(
            np.array(gpu, np.int32),
            np.array(dimension, np.uint8),
            np.array(at, np.float64),
            np.array(value, np.float64) * scale,
            np.array(status, np.uint8),
            np.array(run, np.int32),
            np.array([self.sm_clocks.get(g, np.nan) for g in gpu], np.float32),
        )
        return Evidence(
            self.facts(),
            samples,
            tuple(self.runs),
            tuple(self.readings),
            tuple(sorted(self.kernel, key=lambda m: m.at)),
            tuple(self.links),
            self.health,
            scraped=self.scraped,
        )
