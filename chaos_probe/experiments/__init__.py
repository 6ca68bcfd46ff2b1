"""The experiments, by kind. One file is one kind."""

from collections.abc import Mapping

from chaos_probe.errors import UsageError
from chaos_probe.experiments.base import Experiment
from chaos_probe.experiments.dcgm_inject import DcgmInject
from chaos_probe.experiments.gpu_burn import GpuBurnExperiment
from chaos_probe.experiments.gpu_throttle import GpuThrottle
from chaos_probe.experiments.host_burn import HostBurn
from chaos_probe.experiments.numa_bandwidth import NumaBandwidth
from chaos_probe.experiments.pcie_bandwidth import PcieBandwidth

EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.kind: experiment
    for experiment in (GpuBurnExperiment(), PcieBandwidth(), NumaBandwidth(), DcgmInject(), GpuThrottle(), HostBurn())
}


def experiment(kind: str) -> Experiment:
    """Return the experiment of that kind.

    Raises:
        UsageError: there is none; the text lists those there are.
    """
    try:
        return EXPERIMENTS[kind]
    except KeyError:
        raise UsageError(f"there is no experiment {kind!r}; there are {', '.join(EXPERIMENTS)}") from None
