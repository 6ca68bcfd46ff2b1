"""What the agent tells about itself, for Prometheus: by a port of its own, or a file that an exporter reads."""

import tempfile
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, start_http_server
from prometheus_client.exposition import generate_latest

from chaos_probe.errors import ProbeError
from chaos_probe.records import Outcome
from chaos_probe.report import Sender


class Metrics:
    """The agent's metrics, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._runs = Counter("chaos_probe_runs", "Runs by kind and result", ["kind", "result"], registry=self.registry)
        self._samples = Counter(
            "chaos_probe_samples", "Samples by dimension and status", ["dimension", "status"], registry=self.registry
        )
        self._last = Gauge(
            "chaos_probe_last_run_timestamp_seconds",
            "When a run of this kind last ended",
            ["kind"],
            registry=self.registry,
        )
        self._gauges = {
            name: Gauge(f"chaos_probe_{name}", text, registry=self.registry)
            for name, text in (
                ("queue_records", "Records that wait to be reported"),
                ("queue_bytes", "Bytes that wait to be reported"),
                ("sent_records", "Records that the scorer took since the agent started"),
                ("refused_records", "Records that the scorer refused since the agent started"),
                ("failed_reports", "Reports that failed since the agent started"),
                ("open_runs", "Runs that are not reverted"),
            )
        }
        self._lost = Gauge(
            "chaos_probe_lost_records", "Records dropped because the queue was full", ["kind"], registry=self.registry
        )

    def ran(self, outcome: Outcome, at: float) -> None:
        """Count a run and its samples."""
        result = "good" if outcome.good else "bad" if outcome.reverted else "not_reverted"
        self._runs.labels(outcome.kind, result).inc()
        self._last.labels(outcome.kind).set(at)
        for sample in outcome.samples:
            self._samples.labels(sample.dimension, str(sample.status)).inc()

    def level(self, sender: Sender, open_runs: int) -> None:
        """Take over what the queue and the sender say."""
        level = sender.level()
        values = {
            "queue_records": level.records,
            "queue_bytes": level.size,
            "sent_records": sender.counts.sent,
            "refused_records": sender.counts.refused,
            "failed_reports": sender.counts.failed_calls,
            "open_runs": open_runs,
        }
        for name, value in values.items():
            self._gauges[name].set(value)
        for kind, n in level.lost.items():
            self._lost.labels(kind).set(n)

    def serve(self, port: int) -> None:
        """Answer ``/metrics`` on that port.

        Raises:
            ProbeError: the port is in use.
        """
        try:
            start_http_server(port, registry=self.registry)
        except OSError as error:
            raise ProbeError(f"port {port} cannot be used for metrics: {error.strerror}; choose another") from error

    def write(self, path: Path) -> None:
        """Write them to a file, whole or not at all.

        Raises:
            ProbeError: it cannot be written.
        """
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                file.write(generate_latest(self.registry))
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except OSError as error:
            raise ProbeError(f"{path} cannot be written: {error.strerror}") from error
