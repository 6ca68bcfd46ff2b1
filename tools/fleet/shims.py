"""The executables of an emulated node: small shell files that start the same Python with the same code."""

import shlex
import sys
from pathlib import Path

#: Executable: the module behind it.
TOOLS = {
    "nvidia-smi": "tools.fleet.smi",
    "dcgmi": "tools.fleet.dcgmi",
    "gpu_burn": "tools.fleet.burn",
    "nvbandwidth": "tools.fleet.bandwidth",
}
REPOSITORY = Path(__file__).resolve().parents[2]


def write(state: Path) -> Path:
    """Write the executables into ``state/bin``.

    Returns:
        That folder. What the caller's directory and environment hold does not matter to them, ``NODE_NAME`` apart: no
        module of the working directory is imported (-P), no site packages are searched (-S), which also starts faster.
    """
    folder = state / "bin"
    folder.mkdir(exist_ok=True)
    for name, module in TOOLS.items():
        settings = {"PYTHONPATH": REPOSITORY, "GPUGRADE_FLEET": state.resolve(), "PYTHONUTF8": 1}
        assignments = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in settings.items())
        path = folder / name
        path.write_text(
            f'#!/bin/sh\nexec env -u PYTHONHOME {assignments} {shlex.quote(sys.executable)} -P -S -s -m {module} "$@"\n'
        )
        path.chmod(0o755)
    return folder
