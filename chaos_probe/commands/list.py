"""``chaos-probe list``: the experiments, and what this machine lacks for each."""

from typing import Any

import click

from chaos_probe.commands.common import FORMATS, print_json, print_table, settings_options
from chaos_probe.experiments import EXPERIMENTS
from chaos_probe.experiments.base import Experiment
from chaos_probe.machine import Machine
from chaos_probe.settings import Settings


def describe(experiment: Experiment, machine: Machine) -> dict[str, Any]:
    """Return the documented shape of one experiment."""
    missing = experiment.missing(machine)
    return {
        "kind": experiment.kind,
        "summary": experiment.summary,
        "surfaces": list(experiment.surfaces),
        "needs": list(experiment.needs),
        "available": not missing,
        "missing": missing,
        "risk": experiment.risk,
        "parameters": {parameter.name: parameter.to_json() for parameter in experiment.parameters},
    }


@click.command("list")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True)
@settings_options
def command(settings: Settings, output: str) -> None:
    """List the experiments and whether this machine can do them."""
    machine = Machine.detect(settings.dcgm.host)
    items = [describe(one, machine) for one in EXPERIMENTS.values()]
    if output == "json":
        print_json(items)
        return
    rows = [
        [
            item["kind"],
            "yes" if item["available"] else "no",
            item["risk"],
            item["summary"],
            "; ".join(item["missing"]) or "-",
        ]
        for item in items
    ]
    print_table(("KIND", "AVAILABLE", "RISK", "SUMMARY", "MISSING"), rows)
