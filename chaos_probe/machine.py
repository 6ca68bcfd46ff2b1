"""What this machine has to measure and to inject with: looked for once per command."""

from dataclasses import dataclass
from pathlib import Path

from chaos_probe.devices.cuda import Cuda
from chaos_probe.devices.dcgm import Dcgm
from chaos_probe.devices.numa import numa_nodes
from chaos_probe.devices.nvidia_smi import NvidiaSmi
from chaos_probe.devices.nvml import Nvml, Telemetry, find_telemetry
from chaos_probe.devices.tool import on_path
from chaos_probe.errors import ToolError
from chaos_probe.records import Gpu

NO_GPUS = "no GPU answers nvidia-smi"


@dataclass(frozen=True, slots=True)
class Machine:
    """The means, ``None`` or empty where there are none.

    Attributes:
        gpus: by index, as ``nvidia-smi`` sees them.
        gpu_problem: why there are none.
        smi: ``nvidia-smi``.
        telemetry: vital signs and processes.
        dcgm: ``dcgmi``.
        cuda: what can compute and copy on a GPU.
        numa: NUMA nodes with CPUs and memory.
        numactl: whether it is there.
    """

    gpus: tuple[Gpu, ...]
    gpu_problem: str
    smi: NvidiaSmi | None
    telemetry: Telemetry | None
    dcgm: Dcgm | None
    cuda: Cuda
    numa: tuple[int, ...]
    numactl: bool

    @classmethod
    def detect(cls, dcgm_host: str = "", sysfs: Path = Path("/sys")) -> "Machine":
        """Look at the machine. A driver that does not answer is a problem that is kept, not an error."""
        smi = NvidiaSmi.find()
        gpus: tuple[Gpu, ...] = ()
        problem = "nvidia-smi is not on PATH"
        telemetry: Telemetry | None = None
        if smi is not None:
            try:
                gpus = smi.gpus()
                problem = "" if gpus else NO_GPUS
                telemetry = find_telemetry(smi, Nvml.find())
            except ToolError as error:
                problem = str(error)
        return cls(
            gpus=gpus,
            gpu_problem=problem,
            smi=smi,
            telemetry=telemetry,
            dcgm=Dcgm.find(dcgm_host),
            cuda=Cuda.find(),
            numa=numa_nodes(sysfs),
            numactl=on_path("numactl") is not None,
        )
