"""YAML files: read with bounds, checked against a type, and followed while they change."""

import hashlib
import os
import reprlib
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import structlog
import yaml

from scorer.model.errors import ConfigError

log = structlog.get_logger(__name__)

#: A file that somebody writes to is left alone until it has rested so long.
_SETTLE_S = 0.05

T = TypeVar("T")

API_VERSION = "config.gpugrade.dev/v1alpha1"

try:  # The C parser is ten times faster; some builds of PyYAML lack it.
    from yaml import CSafeLoader as _Loader
except ImportError:  # pragma: no cover - depends on the build
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # same interface, other class


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A mapping of a configuration file: camelCase keys, and none that is not known."""


class _StrictLoader(_Loader):
    """Refuses a key that is given twice: YAML's habit of keeping the last one hides mistakes."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - any value of YAML
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, LookupError, ValueError, OverflowError):
            # What PyYAML's own constructors raise for a value that does not fit its tag, such as !!bool maybe.
            what = reprlib.repr(node.value) if isinstance(node, yaml.ScalarNode) else "this"
            raise yaml.constructor.ConstructorError(
                None, None, f"{what} is no {node.tag.rpartition(':')[2]}", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Read a file.

    Raises:
        ConfigError: if it cannot be read, is a pipe or a device, or has more than ``max_bytes``.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(
                f"{path}: is not a regular file; it is read again when it changes, so name a file on disk"
            )
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > max_bytes:
        raise ConfigError(f"{path}: has more than {max_bytes} bytes, which is the most that is read")
    return data


def decode_yaml(path: Path, data: bytes, kind: str, target: type[T]) -> T:
    """Turn YAML into ``target``, a msgspec type.

    Args:
        path: named in errors.
        data: the file's bytes.
        kind: the ``kind`` that it must declare.
        target: what the document is to become, ``apiVersion`` and ``kind`` included.

    Raises:
        ConfigError: names the file, the place inside it, what is wrong there and what to do.
    """
    try:
        # The loader is a safe one: it makes plain values only.
        document = yaml.load(data.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: must be a mapping that begins with apiVersion: {API_VERSION} and kind: {kind}")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", kind)):
        if document.get(key) != wanted:
            raise ConfigError(f"{path}: {key} is {reprlib.repr(document.get(key))}; it must be {wanted}")
    try:
        return msgspec.convert(document, target)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(f"{path}: {_with_remedy(str(error))}") from None


def _with_remedy(text: str) -> str:
    if "Expected `str`, got `int`" in text or "Expected `str`, got `float`" in text or "got `bool`" in text:
        return f"{text}; quote the value"
    if "unknown field" in text:
        return f"{text}; remove it or mend its spelling (keys are camelCase)"
    return text


class WatchedFile(Generic[T]):
    """A file that is parsed at once and again whenever its content changes; the last good content stays."""

    def __init__(self, path: Path, parse: Callable[[Path], T], poll_s: float = 1.0) -> None:
        """Parse the file for the first time.

        Raises:
            ConfigError: if it is wrong; later mistakes are logged and told by :attr:`problem` instead.
        """
        self._path = path
        self._parse = parse
        self._poll_s = poll_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._stamp = self._stat()
        self._digest = self._hash()
        self.current: T = parse(path)
        self.problem = ""

    def start(self, changed: Callable[[], None]) -> None:
        """Poll for changes; ``changed`` is called after each good reload, from the polling thread."""
        self._thread = threading.Thread(target=self._run, args=(changed,), name=f"watch-{self._path.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def poll(self) -> bool:
        """Look once; whether a new good content was taken."""
        stamp = self._stat()
        if stamp == self._stamp:
            return False
        if self._stop.wait(_SETTLE_S) or self._stat() != stamp:
            return False  # it is being written: half a list of nodes would be a list too
        digest = self._hash()
        self._stamp = stamp
        if digest == self._digest:
            return False
        self._digest = digest
        try:
            self.current = self._parse(self._path)
        except ConfigError as error:
            self.problem = str(error)
            log.warning("file refused, the last good one stays", path=str(self._path), error=str(error))
            return False
        self.problem = ""
        log.info("file reloaded", path=str(self._path))
        return True

    def _run(self, changed: Callable[[], None]) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                if self.poll():
                    changed()
            except Exception:
                # A fault of ours: said, and the next change is still seen.
                self.problem = "it could not be taken over; the log says why"
                log.exception("file not taken over", path=str(self._path))

    def _stat(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - follows the swapped links of mounted ConfigMaps, cheaply
        except OSError as error:
            return (error.errno or 0,)
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def _hash(self) -> bytes:
        try:
            if not self._path.is_file():
                # Of a pipe or a device the end may never come. What is there tells it from another mistake.
                return b"%o" % self._path.stat().st_mode
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            return b"%d" % (error.errno or 0)
