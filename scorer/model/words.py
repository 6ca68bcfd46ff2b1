"""How counts are said."""


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``1 GPU``, ``2 GPUs``."""
    return f"{count} {noun if count == 1 else noun + 's'}"
