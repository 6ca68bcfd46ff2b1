"""What keeps a grade from flapping: rises that wait for a second good probe, and nodes that wait for a clean one."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scorer.grading.baseline import Fleet
from scorer.grading.chance import confidence, verdict
from scorer.grading.draft import Draft
from scorer.grading.facts import NodeView, ago
from scorer.grading.findings import NodeFindings
from scorer.grading.masking import GRACE_S
from scorer.grading.predict import Prediction
from scorer.grading.rules import RULES
from scorer.grading.series import Bools
from scorer.model.board import Finding, GradeBoard
from scorer.model.evidence import Evidence, Run, RunPhase
from scorer.model.grade import Sensitivity
from scorer.model.policy import GradingPolicy

#: A GPU that was slower than this, and is now faster by as much, has risen.
_STEP = 0.02
#: For so long after a revert one clean probe is enough for a rise.
_RECENT_RUN_S = 24 * 3600.0
_LAST_SEEN = "; last seen "
_LINGERING = frozenset(name for name, rule in RULES.items() if rule.lingers)


def with_lingering(
    faults: Sequence[NodeFindings], evidence: Evidence, now: float, policy: GradingPolicy, previous: GradeBoard
) -> list[NodeFindings]:
    """Add to each node's findings those of the board before whose signal comes and goes, until their window is over.

    Args:
        faults: by row of the node.
        evidence: for the nodes' names and runs: what an experiment did goes with it.
        now: Unix seconds.
        policy: windows.
        previous: the board before.
    """
    reverted = [r for r in evidence.runs if r.phase is RunPhase.REVERTED]
    result = []
    for facts, found in zip(evidence.nodes, faults, strict=True):
        row = previous.row.get(facts.name, -1)
        old = [f for f in previous.findings[row] if f.rule in _LINGERING] if row >= 0 else []
        here = {(f.rule, f.gpu_index) for f in found.findings}
        view = NodeView(facts, now, policy)
        stay = [
            _told_again(f, now)
            for f in old
            if (f.rule, f.gpu_index) not in here
            and now - f.last_seen <= view.window(f.rule)
            and not f.run
            and not any(r.node == facts.name and _during(r, f) for r in reverted)
        ]
        result.append(replace(found, findings=(*found.findings, *stay)) if stay else found)
    return result


def _told_again(f: Finding, now: float) -> Finding:
    return replace(f, text=f"{f.text.partition(_LAST_SEEN)[0]}{_LAST_SEEN}{ago(now - f.last_seen)} ago")


def _during(run: Run, f: Finding) -> bool:
    """Whether something was last seen while a run acted on its GPU."""
    return run.started <= f.last_seen <= run.ended + GRACE_S and (not run.gpus or f.gpu_index in run.gpus)


def settle(
    draft: Draft,
    evidence: Evidence,
    fleet: Fleet,
    prediction: Prediction,
    now: float,
    policy: GradingPolicy,
    previous: GradeBoard | None,
) -> NDArray[np.int64]:
    """Hold back what must not change yet; ``draft`` is changed in place.

    Returns:
        int64 (N,): each node's row on the previous board, or -1 where it had none with as many GPUs and job types.
    """
    same = _rows_before(evidence, fleet, policy, previous)
    waiting, exempt = _runs_by_row(evidence, fleet, prediction, now)
    if previous is not None:
        held = _hold_rises(draft, fleet, prediction, policy, previous, same, exempt | waiting.keys())
        for row in held:
            view = NodeView(evidence.nodes[row], now, policy)
            view.add(
                "rise-held",
                -1,
                "one probe looks better than before; the grade rises when a second agrees",
                source="probe",
            )
            draft.findings[row] = (*draft.findings[row], *view.findings)
    for row, run in waiting.items():
        _wait_for_clean_probe(draft, row, run, evidence, now, policy, previous, int(same[row]))
    return same


def _rows_before(
    evidence: Evidence, fleet: Fleet, policy: GradingPolicy, previous: GradeBoard | None
) -> NDArray[np.int64]:
    names = [n.name for n in evidence.nodes]
    if previous is None or previous.job_types != tuple(t.name for t in policy.job_types):
        return np.full(len(names), -1, np.int64)
    same = np.fromiter((previous.row.get(name, -1) for name in names), np.int64, len(names))
    counts = np.diff(fleet.gpu_start)
    before = np.diff(previous.gpu_start)
    fits = (same >= 0) & (counts == np.where(same >= 0, before[np.maximum(same, 0)] if before.size else 0, -1))
    return np.where(fits, same, -1)


def _touched(run: Run, row: int, evidence: Evidence, fleet: Fleet) -> list[int]:
    """GPU rows that a run touched."""
    start = int(fleet.gpu_start[row])
    gpus = evidence.nodes[row].gpus
    return [start + i for i, g in enumerate(gpus) if not run.gpus or g.index in run.gpus]


def _runs_by_row(
    evidence: Evidence, fleet: Fleet, prediction: Prediction, now: float
) -> tuple[dict[int, Run], set[int]]:
    """Which nodes wait for a clean probe after which run, and which have had one and may rise by it at once."""
    row_of = {n.name: i for i, n in enumerate(evidence.nodes)} if evidence.runs else {}
    waiting: dict[int, Run] = {}
    clean: set[int] = set()
    for run in evidence.runs:
        row = row_of.get(run.node)
        if row is None or run.phase is not RunPhase.REVERTED or not math.isfinite(run.ended):
            continue
        touched = _touched(run, row, evidence, fleet)
        if touched and not np.any(prediction.clean_at[touched] > run.ended):
            waiting[row] = run
        elif now - run.ended <= _RECENT_RUN_S:
            clean.add(row)
    # Where another experiment acts meanwhile, what it does decides.
    acting = {row_of.get(r.node) for r in evidence.runs if r.phase is not RunPhase.REVERTED}
    return {row: run for row, run in waiting.items() if row not in acting}, clean


def _hold_rises(
    draft: Draft,
    fleet: Fleet,
    prediction: Prediction,
    policy: GradingPolicy,
    previous: GradeBoard,
    same: NDArray[np.int64],
    exempt: set[int],
) -> list[int]:
    """Keep the grade of what looks faster than before until the two newest probes agree on it; return these rows."""
    rows = np.array([r for r in np.flatnonzero(same >= 0).tolist() if r not in exempt], np.int64)
    if rows.size == 0:
        return []
    held = rows[_risen_unsettled(fleet, prediction, previous, same, rows)]
    for row in held.tolist():
        b = int(same[row])
        point, low, high = (a[b].astype(np.float64) for a in (previous.slowdown, previous.low, previous.high))
        for s in Sensitivity:
            before = verdict(point, low, high, policy.thresholds[s])
            better = (draft.grade[row, ..., s] < before) & (previous.grade[b, ..., s] >= before)
            chance = confidence(before, point, low, high, policy.thresholds[s])
            draft.grade[row, ..., s] = np.where(better, before, draft.grade[row, ..., s])
            draft.confidence[row, ..., s] = np.where(better, chance, draft.confidence[row, ..., s])
        slower = previous.slowdown[b] > draft.slowdown[row]
        for name in ("slowdown", "low", "high"):
            mine, old = getattr(draft, name)[row], getattr(previous, name)[b]
            mine[slower] = old[slower]
    return [int(row) for row in held]


def _risen_unsettled(
    fleet: Fleet, prediction: Prediction, previous: GradeBoard, same: NDArray[np.int64], rows: NDArray[np.int64]
) -> Bools:
    """Return bool, one for each of ``rows``: whether a GPU of it looks faster than before on one probe's word."""
    counts = np.diff(fleet.gpu_start)[rows]
    offset = np.repeat(previous.gpu_start[:-1][same[rows]] - fleet.gpu_start[:-1][rows], counts)
    mine = np.concatenate([np.arange(fleet.gpu_start[r], fleet.gpu_start[r + 1]) for r in rows.tolist()])
    before = previous.gpu_slowdown[mine + offset].astype(np.float64)
    after = prediction.slowdown[mine]
    with np.errstate(invalid="ignore"):
        risen = (before > 1 + _STEP) & (before - after > _STEP) & ~prediction.settled[mine]
    hit = np.zeros(rows.size, np.bool_)
    owner = np.repeat(np.arange(rows.size), counts)
    np.logical_or.at(hit, owner, risen.any(axis=1))
    return hit


def _wait_for_clean_probe(
    draft: Draft,
    row: int,
    run: Run,
    evidence: Evidence,
    now: float,
    policy: GradingPolicy,
    previous: GradeBoard | None,
    before: int,
) -> None:
    """After a revert the last grade stands until a probe without injection has come; new faults still count."""
    view = NodeView(evidence.nodes[row], now, policy)
    text = f"waiting for a clean probe after experiment {run.kind} was reverted"
    view.add("waiting", -1, text, evidence=f"run {run.id}", source="experiment", last=run.ended, run=run.id)
    draft.findings[row] = (*draft.findings[row], *view.findings)
    if previous is None or before < 0 or not draft.fresh[row]:
        return
    fault = draft.fault[row][..., None]
    kept = previous.grade[before]
    draft.grade[row] = np.maximum(kept, fault)
    draft.confidence[row] = np.where(kept >= fault, previous.confidence[before], draft.confidence[row])
    for name in ("slowdown", "low", "high"):
        getattr(draft, name)[row] = getattr(previous, name)[before]
