"""The errors that the probes raise on purpose.

ProbeError
├── UsageError          a person or a file asked for something that does not exist or makes no sense (exit 2)
├── ToolError           a program of the node failed, is absent or said something that cannot be read
│   ├── ToolTimeoutError it did not finish in time
│   └── ToolUnusableError it cannot work here at all: that says nothing of any GPU
├── RefusedError        the guard, or the state of the machine, forbids the run (exit 1)
├── HaltedError         the run was told to stop: a signal, a ceiling, the kill switch
├── JournalError        the journal cannot be kept or read
│   └── DamagedError    a file of it holds what is no entry
└── SpoolError          the queue on disk cannot take a record
"""


class ProbeError(Exception):
    """The root: a command prints its text and exits with 2 unless a subclass says otherwise."""


class UsageError(ProbeError):
    """What was asked for does not exist or makes no sense; the text says what does."""


class ToolError(ProbeError):
    """A program of the node failed, is absent, or its output cannot be read."""


class ToolTimeoutError(ToolError):
    """A program of the node did not finish in time and was ended."""


class ToolUnusableError(ToolError):
    """A program of the node cannot work here, whatever the GPUs are like: it does not start, or a part is missing."""


class RefusedError(ProbeError):
    """The run must not start; the text says why and what to do."""


class HaltedError(ProbeError):
    """The run was told to stop while it worked."""


class JournalError(ProbeError):
    """The journal cannot be kept or read; nothing is injected without it."""


class DamagedError(JournalError):
    """A journal file holds what is no entry: what it said is not known any more."""


class SpoolError(ProbeError):
    """The queue on disk cannot take a record; what it holds is not lost."""
