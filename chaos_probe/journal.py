"""The journal: one file per run that injects, on disk before anything is injected, and all that a revert needs."""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from chaos_probe.errors import DamagedError, JournalError
from chaos_probe.records import Residue, RunPhase, RunRecord
from chaos_probe.revert import REVERTS, Action, well_formed

VERSION = 1
MAX_FILE = 1 << 20
KEEP_CLOSED = 100
_NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")


class State(StrEnum):
    """Where a journalled run stands: what is still to be done for it."""

    OPEN = "open"
    REVERTED = "reverted"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the journal keeps of a run.

    Attributes:
        run: its id.
        kind: the experiment.
        node: node name.
        gpus: indices that it touches; empty for the host.
        created: Unix seconds.
        reverts: actions of :mod:`chaos_probe.revert`, carried out last first.
        residues: what no revert takes away.
        report: whether its end must be reported.
        state: what is still to be done.
        started: Unix seconds of the injection; ``None`` means nothing was injected yet.
        ended: Unix seconds of the verified revert.
        attempts: reverts tried that failed.
        by: who reverted: ``run``, ``recover`` or ``dead-man``.
        detail: what the last attempt said.
    """

    run: str
    kind: str
    node: str
    gpus: tuple[int, ...]
    created: float
    reverts: tuple[Action, ...]
    residues: tuple[Residue, ...] = ()
    report: bool = False
    state: State = State.OPEN
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    by: str = ""
    detail: str = ""

    def record(self) -> RunRecord:
        """Return what is reported of it as it stands."""
        if self.state is State.OPEN:
            phase = RunPhase.FAILED_REVERT if self.attempts else RunPhase.ACTIVE
        else:
            phase = RunPhase.REVERTED
        started = self.created if self.started is None else self.started
        ended = self.ended if phase is RunPhase.REVERTED else None
        return RunRecord(self.run, self.kind, self.gpus, phase, started, ended, self.residues, self.detail)


def _load(text: str) -> Entry:
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise ValueError(f"version {data.get('version') if isinstance(data, dict) else None!r} is not {VERSION}")
    reverts = tuple(data["reverts"])
    for action in reverts:
        if not isinstance(action, Mapping) or not well_formed(action):
            raise ValueError(f"{action!r} is no revert; there are {', '.join(REVERTS)}")
    return Entry(
        run=_text(data, "run"),
        kind=_text(data, "kind"),
        node=_text(data, "node"),
        gpus=tuple(int(g) for g in data["gpus"]),
        created=float(data["created"]),
        reverts=reverts,
        residues=tuple(Residue.from_json(r) for r in data["residues"]),
        report=bool(data["report"]),
        state=State(data["state"]),
        started=None if data["started"] is None else float(data["started"]),
        ended=None if data["ended"] is None else float(data["ended"]),
        attempts=int(data["attempts"]),
        by=_text(data, "by"),
        detail=_text(data, "detail"),
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r} and should be text")
    return value


def no_lock(folder: Path, error: OSError) -> JournalError:
    """Return the error that a lock cannot be had in this folder."""
    return JournalError(
        f"no lock can be had in {folder}: {error.strerror}; choose a --state-dir on a disk of this node, writable"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Journal:
    """The journal's folder. Several processes may use it: each run has a lock of its own."""

    def __init__(self, state_dir: Path) -> None:
        """Open, and create where needed, the folder below the state directory.

        Raises:
            JournalError: it cannot be created or written.
        """
        self.folder = state_dir / "journal"
        self.closed = self.folder / "closed"
        self.damaged = self.folder / "damaged"
        try:
            for folder in (self.closed, self.damaged):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"{self.folder} cannot be used: {error.strerror}; choose another --state-dir") from error

    def path(self, run: str) -> Path:
        """Return the file of an open run."""
        if not _NAME.fullmatch(run):
            raise JournalError(f"{run!r} cannot name a journal file")
        return self.folder / f"{run}.json"

    def write(self, entry: Entry) -> Path:
        """Put an entry on disk, whole or not at all, and return its file once it is safe there.

        Raises:
            JournalError: the disk did not take it.
        """
        path = self.path(entry.run)
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        data = asdict(entry) | {"version": VERSION, "residues": [r.to_json() for r in entry.residues]}
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(data, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            _sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise JournalError(f"the journal cannot be written: {path}: {error.strerror}") from error
        return path

    def read(self, run: str) -> Entry | None:
        """Return the entry of a run, open or closed, or ``None``.

        Raises:
            DamagedError: its file holds no entry.
            JournalError: its file cannot be read now.
        """
        for path in (self.path(run), self.closed / f"{run}.json"):
            with suppress(FileNotFoundError):
                return self._parse(path)
        return None

    def _parse(self, path: Path) -> Entry:
        try:
            with path.open("rb") as file:
                # A file cut off at the bound is no JSON any more, so it counts as damaged.
                raw = file.read(MAX_FILE)
            return _load(raw.decode("utf-8"))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{path} is damaged: {error!r}") from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise JournalError(f"{path} cannot be read: {error.strerror}") from error

    def open_entries(self) -> list[Entry]:
        """Return what is not closed, oldest first. A damaged file is moved aside first; see :meth:`damaged_files`.

        Raises:
            JournalError: a file cannot be read now, or moved; it stays where it is, for it may be whole.
        """
        entries = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                entries.append(self._parse(path))
            except FileNotFoundError:
                continue
            except DamagedError as error:
                self._set_aside(path, error)
        return sorted(entries, key=lambda entry: entry.created)

    def _set_aside(self, path: Path, why: DamagedError) -> None:
        aside = self.damaged / f"{path.stem}.{time.time_ns()}.json"
        try:
            path.rename(aside)
            aside.with_suffix(".why").write_text(f"{why}\n", encoding="utf-8")
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"{path} is damaged and cannot be set aside: {error.strerror}") from error

    def damaged_files(self) -> list[Path]:
        """Return the files that were set aside and that nobody has looked at yet."""
        return sorted(self.damaged.glob("*.json"))

    @contextmanager
    def hold(self, run: str) -> Iterator[Entry | None]:
        """Hold a run's lock, and give its entry as it is on disk now: nobody else injects or reverts meanwhile.

        Raises:
            JournalError: the lock cannot be had on this file system, or the entry cannot be read.
        """
        with ExitStack() as stack:
            try:
                file = stack.enter_context((self.folder / f".{run}.lock").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise no_lock(self.folder, error) from error
            try:
                yield self.read(run)
            finally:
                # Once the run is closed every holder sees it closed, so a second lock file does no harm.
                if not self.path(run).exists():
                    Path(file.name).unlink(missing_ok=True)

    def close(self, entry: Entry) -> Entry:
        """Close an entry that is reverted and reported: move it to the closed ones, of which the last 100 stay."""
        closed = replace(entry, state=State.CLOSED)
        path = self.write(closed)
        path.replace(self.closed / path.name)
        _sync_folder(self.folder)
        with suppress(OSError):
            files = sorted(self.closed.glob("*.json"), key=lambda p: p.stat().st_mtime)
            for old in files[:-KEEP_CLOSED]:
                old.unlink(missing_ok=True)
        return closed
