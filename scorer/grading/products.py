"""What is right for a GPU product: how many NVLinks, and whether it needs a fabric manager."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """Facts about one product.

    Attributes:
        nvlinks: active NVLinks of a healthy GPU; 0 where it has none or the count depends on the machine.
        fabric_manager: whether it needs NVIDIA's fabric manager (NVSwitch between its GPUs).
    """

    nvlinks: int
    fabric_manager: bool


#: First match wins, so the special boards stand before the family. NVL boards are bridged in pairs by design.
_TABLE: tuple[tuple[re.Pattern[str], Product], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), Product(links, manager))
    for pattern, links, manager in (
        (r"\bH100 NVL\b", 12, False),
        (r"\bH200 NVL\b", 18, False),
        (r"\bGH200\b", 0, False),
        (r"\bH100\b.*\bPCIe\b|\bA100\b.*\bPCIe\b", 0, False),
        (r"\bH[12]00\b", 18, True),
        (r"\bA100\b.*\bSXM4\b", 12, True),
        (r"\bA100\b", 0, False),
        (r"\bGB[23]00\b", 18, False),
        (r"\bB[23]00\b", 18, True),
        (r"\bV100\b.*\bSXM[23]\b", 6, False),
    )
)
_UNKNOWN = Product(0, fabric_manager=False)


def product_facts(name: str) -> Product:
    """Return what is right for a product, as the driver or Kubernetes labels name it (dashes count as spaces)."""
    text = name.replace("-", " ")
    return next((p for pattern, p in _TABLE if pattern.search(text)), _UNKNOWN)
