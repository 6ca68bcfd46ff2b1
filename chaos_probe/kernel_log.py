"""The kernel log as it grows: only lines about GPUs and their network cards, with the time of each."""

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

MAX_LINE = 2048
MAX_BATCH = 500
_CHUNK = 1 << 17
_WANTED = re.compile(r"NVRM|\bS?Xid\b|mlx5|nvidia-nvswitch", re.IGNORECASE)
_STAMPED = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d))\s+(.*)$")
_KMSG = re.compile(r"^\d+,\d+,(\d+),[^;]*;(.*)$")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A line that may matter.

    Attributes:
        at: Unix seconds.
        text: without its time.
        timed: whether the log said when.
    """

    at: float
    text: str
    timed: bool


def booted_at() -> float:
    """Return when the machine was booted, Unix seconds: the kernel counts its stamps from there."""
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


def parse_line(line: str, now: float, boot: float) -> KernelLine | None:
    """Read a line: with an RFC 3339 time, as ``/dev/kmsg`` writes it, or bare. ``None`` if it is about nothing here."""
    if not _WANTED.search(line):
        return None
    if stamped := _STAMPED.match(line):
        with suppress(ValueError):
            at = datetime.fromisoformat(stamped.group(1).replace(",", ".")).timestamp()
            return KernelLine(at, stamped.group(2)[:MAX_LINE], timed=True)
    if record := _KMSG.match(line):
        return KernelLine(boot + int(record.group(1)) / 1e6, record.group(2)[:MAX_LINE], timed=True)
    return KernelLine(now, line.strip()[:MAX_LINE], timed=False)


class KernelLog:
    """A file that grows, or ``/dev/kmsg``; its place is kept on disk, so that a restart tells nothing twice."""

    def __init__(self, path: Path, place: Path) -> None:
        self._path = path
        self._place = place
        self._inode = 0
        self._offset = 0
        self._rest = b""
        self._device: int | None = None
        # Lines without a time that stood there before we first reached the end may be old: when is not known.
        self._fresh = False
        self._at_end = True
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(place.read_text(encoding="utf-8"))
            self._inode, self._offset, self._fresh = int(kept["inode"]), int(kept["offset"]), bool(kept["fresh"])
        self._kept = (self._inode, self._offset, self._fresh)

    def poll(self) -> list[KernelLine]:
        """Return what is new and matters, of the next 128 KiB or 500 records; empty where the file is absent."""
        now, boot = time.time(), booted_at()
        raw = self._device_lines() if self._path.is_char_device() else self._file_lines()
        lines = [parse_line(text.decode("utf-8", "replace"), now, boot) for text in raw]
        found = [line for line in lines if line is not None and (line.timed or self._fresh)]
        self._fresh = self._fresh or self._at_end
        return found

    def keep(self) -> None:
        """Keep the place: what was polled so far is safe elsewhere."""
        draft = self._place.with_name(f".{self._place.name}.{os.getpid()}.tmp")
        data: dict[str, int] = {"inode": self._inode, "offset": self._offset - len(self._rest), "fresh": self._fresh}
        draft.write_text(json.dumps(data), encoding="utf-8")
        draft.replace(self._place)
        self._kept = (self._inode, data["offset"], self._fresh)

    def rewind(self) -> None:
        """Go back to the place that was kept last: what was polled since could not be put anywhere."""
        self._inode, self._offset, self._fresh = self._kept
        self._rest = b""

    def _file_lines(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode or stat.st_size < self._offset:
                    self._inode, self._offset, self._rest = stat.st_ino, 0, b""
                file.seek(self._offset)
                data = file.read(_CHUNK)
        except OSError:
            return iter(())
        self._offset += len(data)
        self._at_end = len(data) < _CHUNK
        *lines, rest = (self._rest + data).split(b"\n")
        # A line without an end that grows and grows is not kept.
        self._rest = b"" if len(rest) > _CHUNK else rest
        return iter(lines)

    def _device_lines(self) -> Iterator[bytes]:
        """Read records of the kernel's own device; what was there before we first looked is history."""
        if self._device is None:
            with suppress(OSError):
                self._device = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
                os.lseek(self._device, 0, os.SEEK_END)
        found: list[bytes] = []
        while self._device is not None and len(found) < MAX_BATCH:
            try:
                found.append(os.read(self._device, 8192).split(b"\n")[0])
            except BrokenPipeError:
                continue
            except OSError:
                break
        return iter(found)
