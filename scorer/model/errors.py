"""The errors that gpugrade raises on purpose.

GpugradeError
├── InputError          something that a person or a program handed us is wrong; the text says what and what to do
│   ├── ConfigError     a configuration or fleet file
│   ├── BundleError     an evidence bundle
│   └── RequestError    a request to one of the doors
├── StoreError          the store cannot keep what it was given (disk full, not a database)
└── UnavailableError    something needed is not there now (a port in use, a server away)
"""


class GpugradeError(Exception):
    """The root: a command prints its text and exits with 2."""


class InputError(GpugradeError):
    """What was handed in is wrong."""


class ConfigError(InputError):
    """A configuration or fleet file is wrong; the text names the file, the path inside it and the remedy."""


class BundleError(InputError):
    """An evidence bundle is wrong."""


class RequestError(InputError):
    """A request is wrong."""


class StoreError(GpugradeError):
    """The store cannot keep what it was given; nothing kept before is lost."""


class UnavailableError(GpugradeError):
    """Something that is needed is not there now."""
