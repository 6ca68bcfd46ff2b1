"""Metrics of dcgm-exporter: names of every version to field ids, units, and which values are no values.

Names change between versions (4.9 renamed 23 of them), ids do not: everything after this table speaks in ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

#: DCGM field ids that rules speak of.
SM_CLOCK = 100
EVENT_REASONS = 112
TEMPERATURE = 150
POWER = 155
ENERGY = 156
SLOWDOWN_POINT = 158
POWER_LIMIT = 160
DEFAULT_LIMIT = 163
ENFORCED_LIMIT = 164
FABRIC_STATUS = 170
PCIE_REPLAY = 202
GPU_UTIL = 203
XID = 230
PCIE_MAX_GEN = 235
PCIE_MAX_WIDTH = 236
PCIE_GEN = 237
PCIE_WIDTH = 238
POWER_VIOLATION = 240
THERMAL_VIOLATION = 241
DBE_VOLATILE = 311
RETIRED_PENDING = 392
REMAPPED_UNCORRECTABLE = 393
REMAP_FAILURE = 395
REMAP_PENDING = 396
NVLINK_REPLAY = 429
NVLINK_RECOVERY = 439
HW_THERMAL_NS = 1423
POWER_BRAKE_NS = 1424

#: Bits of the clock event reasons.
REASON_CLOCKS_SETTING = 0x2
REASON_SW_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8 | 0x40 | 0x80

#: Blank values of DCGM by type: at or above these a number means "no value", whatever the metric.
BLANK_INT32 = float(0x7FFFFFF0)
BLANK_FP64 = 140737488355328.0
BLANK_INT64 = float(0x7FFFFFFFFFFFFFF0)


@dataclass(frozen=True, slots=True)
class Field:
    """One DCGM field.

    Attributes:
        id: DCGM's number.
        meaning: in plain words.
        top: largest value that can be one; anything above is a blank or a glitch, hence missing.
        names: metric names by which exporters have exported it.
    """

    id: int
    meaning: str
    top: float
    names: tuple[str, ...]


_NS = 9.0e18
FIELDS: tuple[Field, ...] = (
    Field(SM_CLOCK, "SM clock in MHz", 10_000, ("DCGM_FI_DEV_SM_CLOCK",)),
    Field(101, "memory clock in MHz", 20_000, ("DCGM_FI_DEV_MEM_CLOCK",)),
    Field(
        EVENT_REASONS,
        "clock event reasons, a bit mask",
        0xFFFF,
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    ),
    Field(113, "maximum SM clock in MHz", 10_000, ("DCGM_FI_DEV_MAX_SM_CLOCK",)),
    Field(140, "memory temperature in C", 150, ("DCGM_FI_DEV_MEMORY_TEMP",)),
    Field(TEMPERATURE, "GPU temperature in C", 150, ("DCGM_FI_DEV_GPU_TEMP",)),
    Field(POWER, "power draw in W", 5_000, ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE_INSTANT")),
    Field(ENERGY, "energy since driver load in mJ", _NS, ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",)),
    Field(SLOWDOWN_POINT, "temperature in C at which the hardware slows down", 150, ("DCGM_FI_DEV_SLOWDOWN_TEMP",)),
    Field(POWER_LIMIT, "power management limit in W", 5_000, ("DCGM_FI_DEV_POWER_MGMT_LIMIT",)),
    Field(DEFAULT_LIMIT, "default power limit in W", 5_000, ("DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",)),
    Field(ENFORCED_LIMIT, "enforced power limit in W", 5_000, ("DCGM_FI_DEV_ENFORCED_POWER_LIMIT",)),
    Field(FABRIC_STATUS, "fabric manager status", 10, ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS",)),
    Field(PCIE_REPLAY, "PCIe replays", BLANK_INT32, ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER",)),
    Field(GPU_UTIL, "GPU utilisation in percent", 100, ("DCGM_FI_DEV_GPU_UTIL",)),
    Field(204, "memory copy utilisation in percent", 100, ("DCGM_FI_DEV_MEM_COPY_UTIL",)),
    Field(XID, "last XID", 9_999, ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")),
    Field(PCIE_MAX_GEN, "maximum PCIe generation", 10, ("DCGM_FI_DEV_PCIE_MAX_LINK_GEN",)),
    Field(PCIE_MAX_WIDTH, "maximum PCIe width", 32, ("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH",)),
    Field(PCIE_GEN, "PCIe generation now", 10, ("DCGM_FI_DEV_PCIE_LINK_GEN",)),
    Field(PCIE_WIDTH, "PCIe width now", 32, ("DCGM_FI_DEV_PCIE_LINK_WIDTH",)),
    Field(POWER_VIOLATION, "time lost to the power limit in ns", _NS, ("DCGM_FI_DEV_POWER_VIOLATION",)),
    Field(THERMAL_VIOLATION, "time lost to heat in ns", _NS, ("DCGM_FI_DEV_THERMAL_VIOLATION",)),
    Field(251, "frame buffer free in MiB", BLANK_INT32, ("DCGM_FI_DEV_FB_FREE",)),
    Field(252, "frame buffer used in MiB", BLANK_INT32, ("DCGM_FI_DEV_FB_USED",)),
    Field(310, "single-bit ECC errors since load", BLANK_INT32, ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",)),
    Field(DBE_VOLATILE, "double-bit ECC errors since load", BLANK_INT32, ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",)),
    Field(312, "single-bit ECC errors ever", BLANK_INT32, ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",)),
    Field(313, "double-bit ECC errors ever", BLANK_INT32, ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",)),
    Field(391, "pages retired for double-bit errors", BLANK_INT32, ("DCGM_FI_DEV_RETIRED_DBE",)),
    Field(RETIRED_PENDING, "page retirements pending", BLANK_INT32, ("DCGM_FI_DEV_RETIRED_PENDING",)),
    Field(
        REMAPPED_UNCORRECTABLE,
        "rows remapped for uncorrectable errors",
        BLANK_INT32,
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",),
    ),
    Field(394, "rows remapped for correctable errors", BLANK_INT32, ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",)),
    Field(REMAP_FAILURE, "row remapping has failed", 1, ("DCGM_FI_DEV_ROW_REMAP_FAILURE",)),
    Field(REMAP_PENDING, "a row remap is pending", 1, ("DCGM_FI_DEV_ROW_REMAP_PENDING",)),
    Field(409, "NVLink flit CRC errors", BLANK_INT32, ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",)),
    Field(419, "NVLink data CRC errors", BLANK_INT32, ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",)),
    Field(NVLINK_REPLAY, "NVLink replays", BLANK_INT32, ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",)),
    Field(NVLINK_RECOVERY, "NVLink recoveries", BLANK_INT32, ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",)),
    Field(
        HW_THERMAL_NS,
        "time in hardware thermal slowdown in ns",
        _NS,
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",),
    ),
    Field(
        POWER_BRAKE_NS,
        "time in power brake slowdown in ns",
        _NS,
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",),
    ),
)

BY_NAME: Mapping[str, Field] = {name: f for f in FIELDS for name in f.names}
BY_ID: Mapping[int, Field] = {f.id: f for f in FIELDS}

#: Fields that never stand still on a live GPU; the first that is exported is the pulse of the telemetry.
PULSE: tuple[int, ...] = (ENERGY, POWER)

#: Fields whose absence blinds a monitor: when a series of them stops, that must be said. Memory errors and remaps also
#: raise XIDs (48, 63, 64), so the XID series covers those.
WATCHED: Mapping[int, str] = {XID: "XID", HW_THERMAL_NS: "thermal slowdown", POWER_BRAKE_NS: "power brake"}

#: Words in a health report that an injected value of a field brings about.
HEALTH_WORDS: Mapping[int, str] = {
    DBE_VOLATILE: "double-bit",
    REMAP_FAILURE: "remap",
    REMAP_PENDING: "remap",
    POWER_VIOLATION: "power",
    THERMAL_VIOLATION: "thermal",
    NVLINK_REPLAY: "nvlink",
    NVLINK_RECOVERY: "nvlink",
    PCIE_REPLAY: "replay",
}


def clean(field: Field, value: float) -> float:
    """Return the value, or NaN where it cannot be one: a DCGM blank, a glitch out of range, negative, not finite."""
    if not np.isfinite(value) or value < 0 or value > field.top or value in (BLANK_FP64, BLANK_INT64):
        return float("nan")
    return value
