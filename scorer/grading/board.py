"""The fold: all evidence in, a new grade board out. Pure and deterministic; the clock is an argument."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scorer.grading.baseline import Fleet, fleet_of
from scorer.grading.causes import with_causes
from scorer.grading.chance import confidence
from scorer.grading.draft import Draft
from scorer.grading.facts import NodeView, ago, gpu_list
from scorer.grading.findings import NodeFindings, find_faults, sort_by_node
from scorer.grading.hysteresis import settle, with_lingering
from scorer.grading.jobs import GpuJobs, judge_gpus, worst_of_node
from scorer.grading.masking import split_samples
from scorer.grading.predict import Prediction, newest_of, predict
from scorer.grading.reach import reach_mask
from scorer.grading.series import Bools
from scorer.grading.slow import slow_findings
from scorer.model.board import Finding, GradeBoard, Reach
from scorer.model.dimension import OF_GPUS
from scorer.model.evidence import Evidence
from scorer.model.grade import Grade, Sensitivity
from scorer.model.policy import GradingPolicy

#: Confidence in a grade that a fault decides, and in one that rests on sources that disagree.
FAULT_CONFIDENCE = 0.99
UNCONFIRMED_CONFIDENCE = 0.5


def fold(evidence: Evidence, policy: GradingPolicy, now: float, previous: GradeBoard | None = None) -> GradeBoard:
    """Grade every node from all that is known.

    Args:
        evidence: samples, telemetry, kernel lines, links, health, runs.
        policy: job types, thresholds, windows.
        now: Unix seconds.
        previous: the board before, for hysteresis and for since when a grade holds; ``None`` at the start.

    Returns:
        a new board, one version above ``previous``.
    """
    fleet = fleet_of(evidence.nodes)
    plain, active = split_samples(evidence.samples, evidence.runs)
    prediction = predict(evidence, plain, active, fleet, now, policy)
    jobs = judge_gpus(prediction, now, policy)
    parts = sort_by_node(evidence, fleet, plain | active, now, policy)
    faults = [find_faults(row, evidence, parts, fleet, prediction, now, policy) for row in range(len(evidence.nodes))]
    if previous is not None:
        faults = with_lingering(faults, evidence, now, policy, previous)
    slow = slow_findings(evidence.nodes, fleet, prediction, jobs, now, policy)
    slow = with_causes(slow, faults, evidence, parts, fleet, prediction, plain | active, now, policy)
    draft = _draft(evidence, fleet, prediction, jobs, faults, slow, now, policy)
    same = settle(draft, evidence, fleet, prediction, now, policy, previous)
    return _board(draft, evidence, fleet, prediction, now, policy, previous, same)


def _draft(
    evidence: Evidence,
    fleet: Fleet,
    prediction: Prediction,
    jobs: GpuJobs,
    faults: list[NodeFindings],
    slow: Mapping[int, Sequence[Finding]],
    now: float,
    policy: GradingPolicy,
) -> Draft:
    """Put measurement and faults together, the worse of the two."""
    use = _handed_out(evidence, fleet, faults)
    draft = Draft(
        slowdown=worst_of_node(jobs.point, fleet, use, 1.0),
        low=worst_of_node(jobs.low, fleet, use, 1.0),
        high=worst_of_node(jobs.high, fleet, use, 1.0),
        grade=worst_of_node(jobs.grade.astype(np.float64), fleet, use, float(Grade.UNKNOWN)).astype(np.uint8),
        fault=np.zeros((len(evidence.nodes), len(policy.job_types), jobs.point.shape[2]), np.uint8),
        confidence=np.zeros((len(evidence.nodes), *jobs.grade.shape[1:])),
        gpu_grade=jobs.grade.copy(),
        findings=[],
        fresh=np.ones(len(evidence.nodes), np.bool_),
    )
    for s in Sensitivity:
        bounds = policy.thresholds[s]
        draft.confidence[..., s] = confidence(draft.grade[..., s], draft.slowdown, draft.low, draft.high, bounds)
    stale = _stale_findings(evidence, fleet, prediction, jobs, use, now, policy)
    for row, found in enumerate(faults):
        draft.fresh[row] = row not in stale
        listed = [*_apply(draft, row, found, evidence, fleet, policy), *slow.get(row, ()), *stale.get(row, ())]
        draft.findings.append(tuple(sorted(listed, key=lambda f: -int(f.grade))))
    return draft


def _handed_out(evidence: Evidence, fleet: Fleet, faults: list[NodeFindings]) -> Bools:
    """Which GPUs the kubelet may hand out; it chooses, so the worst of them counts."""
    use = np.ones(fleet.node.size, np.bool_)
    for row, found in enumerate(faults):
        if found.withheld:
            start = int(fleet.gpu_start[row])
            for i, gpu in enumerate(evidence.nodes[row].gpus):
                use[start + i] = gpu.index not in found.withheld
    return use


def _apply(
    draft: Draft, row: int, found: NodeFindings, evidence: Evidence, fleet: Fleet, policy: GradingPolicy
) -> list[Finding]:
    """Let a node's findings act on its grades and its GPUs'; returns them with the reach that they have here."""
    facts = evidence.nodes[row]
    offered = len(facts.gpus) if facts.offered is None else facts.offered
    place = {gpu.index: int(fleet.gpu_start[row]) + i for i, gpu in enumerate(facts.gpus)}
    result = []
    for f in found.findings:
        gpu_mask = reach_mask(f.reach, policy, offered)
        if f.gpu_index in place:
            grades = draft.gpu_grade[place[f.gpu_index]]
            grades[gpu_mask] = np.maximum(grades[gpu_mask], np.uint8(f.grade))
        here = f
        if f.gpu_index in found.withheld or (
            f.gpu_index < 0 and f.rule == "off-bus" and _absent(facts.offered, facts.expected)
        ):
            # It is not handed out, so it is only missing to those who need every GPU.
            here = replace(f, reach=Reach.WHOLE_NODE)
        mask = gpu_mask if here is f else reach_mask(here.reach, policy, offered)
        draft.fault[row][mask] = np.maximum(draft.fault[row][mask], np.uint8(f.grade))
        _decide(draft, row, mask, f)
        result.append(here)
    return result


def _absent(offered: int | None, expected: int | None) -> bool:
    """Whether the kubelet offers fewer GPUs than there should be."""
    return offered is not None and expected is not None and offered < expected


def _decide(draft: Draft, row: int, mask: Bools, f: Finding) -> None:
    """The worse of the present grade and the finding's; where the finding decides its confidence does too."""
    if f.grade is Grade.GREEN:
        return
    grades, chance = draft.grade[row], draft.confidence[row]
    worse = mask[..., None] & (grades < f.grade)
    sure = UNCONFIRMED_CONFIDENCE if f.rule == "unconfirmed" else FAULT_CONFIDENCE
    chance[worse] = 0.0 if f.grade is Grade.UNKNOWN else sure
    grades[worse] = f.grade


def _stale_findings(
    evidence: Evidence,
    fleet: Fleet,
    prediction: Prediction,
    jobs: GpuJobs,
    use: Bools,
    now: float,
    policy: GradingPolicy,
) -> dict[int, list[Finding]]:
    """Say of which nodes nothing recent, or nothing comparable, is known."""
    newest = newest_of(prediction.newest_at[:, OF_GPUS])
    recent = now - newest <= policy.max_probe_age_s
    compared = np.asarray(np.isfinite(prediction.slowdown).any(axis=1))
    dark = use & np.logical_not(jobs.fresh & compared)
    found: dict[int, list[Finding]] = {}
    counts = np.diff(fleet.gpu_start)
    for row in np.unique(np.concatenate((fleet.node[dark], np.flatnonzero(counts == 0)))).tolist():
        view = NodeView(evidence.nodes[row], now, policy)
        start, stop = int(fleet.gpu_start[row]), int(fleet.gpu_start[row + 1])
        old = [i for i in range(start, stop) if use[i] and not recent[i]]
        limit = ago(policy.max_probe_age_s)
        if stop == start:
            view.add("stale-probes", -1, "no evidence: no GPU of it is known", source="monitoring")
        elif old:
            indices = [evidence.nodes[row].gpus[i - start].index for i in old]
            who, was = gpu_list(indices), "was" if len(indices) == 1 else "were"
            ages = newest[old]
            if np.isfinite(ages).any():
                age = ago(now - float(np.nanmax(ages)))
                text = f"no recent evidence: the newest good probe of {who} is {age} old, older than {limit}"
            else:
                text = f"no evidence: {who} {was} never measured"
            view.add("stale-probes", -1, text, source="monitoring")
        else:
            indices = [evidence.nodes[row].gpus[i - start].index for i in range(start, stop) if not compared[i]]
            who, has = gpu_list(indices), "has" if len(indices) == 1 else "have"
            wanted = f"at least {policy.min_peers} on {policy.min_peer_nodes} other nodes"
            text = f"{who} {has} too few peers to compare with ({wanted})"
            view.add("no-reference", -1, text, source="monitoring")
        found[row] = view.findings
    return found


def _board(
    draft: Draft,
    evidence: Evidence,
    fleet: Fleet,
    prediction: Prediction,
    now: float,
    policy: GradingPolicy,
    previous: GradeBoard | None,
    same: NDArray[np.int64],
) -> GradeBoard:
    """Freeze the draft; a grade that did not change keeps the time since when it holds."""
    since = np.full(draft.grade.shape, now)
    if previous is not None and np.any(same >= 0):
        rows = np.flatnonzero(same >= 0)
        before = same[rows]
        keep = draft.grade[rows] == previous.grade[before]
        since[rows] = np.where(keep, previous.since[before], now)
    names = tuple(n.name for n in evidence.nodes)
    gpus = [g for n in evidence.nodes for g in n.gpus]
    newest = newest_of(prediction.newest_at[:, OF_GPUS])
    at = worst_of_node(newest, fleet, np.isfinite(newest), np.nan)
    return GradeBoard(
        version=1 if previous is None else previous.version + 1,
        at=now,
        nodes=names,
        row={name: i for i, name in enumerate(names)},
        job_types=tuple(t.name for t in policy.job_types),
        slowdown=draft.slowdown.astype(np.float32),
        low=draft.low.astype(np.float32),
        high=draft.high.astype(np.float32),
        grade=draft.grade,
        confidence=draft.confidence.astype(np.float32),
        evidence_at=at,
        since=since,
        gpu_start=fleet.gpu_start,
        gpu_index=np.fromiter((g.index for g in gpus), np.int32, len(gpus)),
        gpu_uuid=tuple(g.uuid for g in gpus),
        gpu_slowdown=prediction.slowdown.astype(np.float32),
        gpu_low=prediction.low.astype(np.float32),
        gpu_high=prediction.high.astype(np.float32),
        gpu_samples=prediction.samples.astype(np.int32),
        gpu_grade=draft.gpu_grade,
        findings=tuple(draft.findings),
    )
