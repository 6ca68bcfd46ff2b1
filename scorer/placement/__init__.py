"""Placement: cluster, grades and a pod give feasible nodes, scores and reasons. Pure."""

from scorer.placement.decide import FilterAnswer, Reason, ScoreAnswer, filter_nodes, request_of, score_nodes
from scorer.placement.dryrun import Assignment, Placement, place
from scorer.placement.gangs import PodFacts, Resources
from scorer.placement.pod import PodRequest, job_request, resolve_pod
from scorer.placement.topology import build_trees
from scorer.placement.world import World

__all__ = [
    "Assignment",
    "FilterAnswer",
    "Placement",
    "PodFacts",
    "PodRequest",
    "Reason",
    "Resources",
    "ScoreAnswer",
    "World",
    "build_trees",
    "filter_nodes",
    "job_request",
    "place",
    "request_of",
    "resolve_pod",
    "score_nodes",
]
