"""Settings of the probes: one small YAML file, every key optional, unknown keys refused; flags win over it."""

import os
import re
import socket
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import yaml

from chaos_probe.errors import UsageError

API_VERSION = "config.gpugrade.dev/v1alpha1"
KIND = "ProbeSettings"
MAX_FILE = 1 << 20
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SCALE = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


def seconds(text: str) -> float:
    """Return a span such as ``10s``, ``1.5m``, ``6h`` or a plain number, in seconds.

    Raises:
        UsageError: it is none.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no span of time; write it like 10s, 5m, 6h or 1d")
    return float(match.group(1)) * _SCALE[match.group(2)]


class QuietHours(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A daily span in which nothing is run; it may pass midnight."""

    start: str
    end: str
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = ()
    """Days on which it starts; empty means all."""

    def minutes(self) -> tuple[int, int]:
        """Return start and end in minutes after midnight."""
        found = [_CLOCK.fullmatch(text) for text in (self.start, self.end)]
        if not all(found):
            raise UsageError(f"quietHours {self.start!r} to {self.end!r}: write times like 08:00 and 18:30")
        first, last = (int(m.group(1)) * 60 + int(m.group(2)) for m in found if m)
        return first, last


class GuardSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What forbids a run."""

    kill_switch: str = "/run/chaos-probe/stop"
    """While this file exists nothing is started, and what runs is reverted."""
    quiet_hours: tuple[QuietHours, ...] = ()
    timezone: str = "UTC"
    max_temperature_c: float = 90.0
    """Above it nothing is started and what runs is ended: the slowdown point of data-centre GPUs is near."""
    max_power_w: float = 0.0
    """Watts of one GPU; 0 means 1.15 times its default limit, above which a board is not meant to go."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    watch_every: str = "2s"


class DeadManSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The watcher that reverts when the run itself cannot."""

    margin: str = "30s"
    """How long after the run should have reverted."""


class SpoolSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Bounds of the queue on disk."""

    max_records: int = 100_000
    max_mib: int = 64


class ReportSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where reports go."""

    to: str = ""
    token_file: str = ""
    ca_file: str = ""
    """Certificates that sign the scorer's; empty means no TLS."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An experiment that the agent repeats."""

    kind: str
    every: str = "6h"
    params: dict[str, str | int | float | bool] = {}
    hold: str = ""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What the agent does."""

    experiments: tuple[Planned, ...] = (
        Planned(kind="gpu-burn", every="6h"),
        Planned(kind="pcie-bandwidth", every="6h"),
        Planned(kind="numa-bandwidth", every="24h"),
        Planned(kind="host-burn", every="6h"),
    )
    allow_injection: bool = False
    """Without it only experiments that measure may be listed."""
    pause: str = "30s"
    """Mean time between two runs: a node is measured for a small part of its time only."""
    seed: int | None = None
    """Of the schedule's jitter; left out it comes from the node's name, so that nodes do not run in step."""
    kernel_log: str = ""
    inventory_every: str = "5m"
    metrics_port: int = 0
    metrics_file: str = ""


class DcgmSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where the host engine is."""

    host: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All of it."""

    api_version: str = API_VERSION
    kind: str = KIND
    node: str = ""
    state_dir: str = ""
    guard: GuardSettings = GuardSettings()
    dead_man: DeadManSettings = DeadManSettings()
    spool: SpoolSettings = SpoolSettings()
    report: ReportSettings = ReportSettings()
    agent: AgentSettings = AgentSettings()
    dcgm: DcgmSettings = DcgmSettings()

    @property
    def node_name(self) -> str:
        """The node's name: the setting, else ``NODE_NAME``, else the host's name."""
        return self.node or os.environ.get("NODE_NAME", "") or socket.gethostname()

    @property
    def state_path(self) -> Path:
        """The folder of journal and queue: the setting, ``CHAOS_PROBE_STATE``, else the system's or the user's."""
        named = self.state_dir or os.environ.get("CHAOS_PROBE_STATE", "")
        if named:
            return Path(named)
        if os.geteuid() == 0:
            return Path("/var/lib/chaos-probe")
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(home) / "chaos-probe"


def load_settings(path: str | None) -> Settings:
    """Read a settings file, or give the defaults where none is named.

    Raises:
        UsageError: it cannot be read, or holds what it should not; the text names file, path and remedy.
    """
    if path is None:
        return Settings()
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_FILE:
        raise UsageError(f"{path} is larger than {MAX_FILE >> 20} MiB; it is no settings file")
    try:
        data: Any = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    try:
        settings = msgspec.convert(data if data is not None else {}, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}; correct it, or leave it out for the default") from error
    if settings.api_version != API_VERSION or settings.kind != KIND:
        raise UsageError(
            f"{path}: apiVersion {settings.api_version!r}, kind {settings.kind!r}; this reads {API_VERSION} {KIND}"
        )
    _check(path, settings)
    return settings


def _check(path: str, settings: Settings) -> None:
    spans = {
        "guard.watchEvery": settings.guard.watch_every,
        "deadMan.margin": settings.dead_man.margin,
        "agent.pause": settings.agent.pause,
        "agent.inventoryEvery": settings.agent.inventory_every,
        **{f"agent.experiments[{i}].every": p.every for i, p in enumerate(settings.agent.experiments)},
        **{f"agent.experiments[{i}].hold": p.hold for i, p in enumerate(settings.agent.experiments) if p.hold},
    }
    for name, text in spans.items():
        try:
            span = seconds(text)
        except UsageError as error:
            raise UsageError(f"{path}: {name}: {error}") from None
        if span <= 0.0:
            raise UsageError(f"{path}: {name} must be longer than 0")
    try:
        ZoneInfo(settings.guard.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"{path}: guard.timezone {settings.guard.timezone!r} is no time zone; write one like UTC"
        ) from None
    for hours in settings.guard.quiet_hours:
        hours.minutes()
    if settings.spool.max_records < 1 or settings.spool.max_mib < 1:
        raise UsageError(f"{path}: spool.maxRecords and spool.maxMib must be at least 1")
