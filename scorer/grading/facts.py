"""Look-ups that fault rules share: which GPU is meant, and how a moment in time is said."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from scorer.grading.rules import FAULT_WINDOW, RULES
from scorer.model.board import Action, Finding, Reach
from scorer.model.evidence import NodeFacts
from scorer.model.grade import Grade
from scorer.model.policy import GradingPolicy

_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-7])?$")


def pci_key(text: str) -> tuple[int, int, int] | None:
    """Return domain, bus and device of a PCI address in any of its spellings; ``None`` where it is none."""
    found = _PCI.search(text.strip())
    if not found:
        return None
    domain, bus, device = found.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


def ago(seconds: float) -> str:
    """Say a span of time as people do: ``40 s``, ``12 min``, ``2 h``, ``6.4 days``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    seconds = max(seconds, 0.0)
    for limit, size, unit in ((90.0, 1.0, "s"), (5400.0, 60.0, "min"), (172800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400.0:.1f} days"


@dataclass(slots=True)
class NodeView:
    """A node while its faults are looked for.

    Attributes:
        facts: what it is.
        now: Unix seconds.
        policy: windows.
        findings: what was found so far.
    """

    facts: NodeFacts
    now: float
    policy: GradingPolicy
    findings: list[Finding] = field(default_factory=list)

    def gpu_at(self, address: str) -> int:
        """Return the index of the GPU at a PCI address, or -1."""
        key = pci_key(address)
        return next((g.index for g in self.facts.gpus if key and pci_key(g.pci_bus_id) == key), -1)

    @property
    def product(self) -> str:
        """The product of its GPUs; empty where not known."""
        return next((g.product for g in self.facts.gpus if g.product), "")

    def window(self, rule: str) -> float:
        """For how long an event of a rule counts, in seconds."""
        seconds = RULES[rule].window_s
        return self.policy.fault_window_s if seconds == FAULT_WINDOW else seconds

    def add(
        self,
        rule: str,
        gpu: int,
        text: str,
        *,
        evidence: str = "",
        source: str = "",
        first: float = math.nan,
        last: float = math.nan,
        grade: Grade | None = None,
        reach: Reach | None = None,
        action: Action | None = None,
        names_gpu: bool | None = None,
        run: str = "",
    ) -> None:
        """Note a finding of a rule; what is not given is the rule's.

        An event beyond its window is not noted.
        """
        row = RULES[rule]
        if math.isfinite(last) and self.now - last > self.window(rule):
            return
        self.findings.append(
            Finding(
                rule=rule,
                grade=row.grade if grade is None else grade,
                reach=reach or row.reach,
                gpu_index=gpu,
                text=text,
                evidence=evidence,
                source=source,
                action=row.action if action is None else action,
                first_seen=first,
                last_seen=last,
                names_gpu=(row.names_gpu if names_gpu is None else names_gpu) and gpu >= 0,
                run=run,
            )
        )


def gpu_list(indices: Iterable[int]) -> str:
    """``GPU 3`` or ``GPUs 1, 2``."""
    numbers = sorted(set(indices))
    return ("GPU " if len(numbers) == 1 else "GPUs ") + ", ".join(map(str, numbers))
