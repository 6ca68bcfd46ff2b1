"""``gpugrade serve``: the server."""

from pathlib import Path

import click

from scorer.cli.main import Real
from scorer.model.policy import Mode
from scorer.serve.app import ServeOptions, Server
from scorer.serve.doors import Tls
from scorer.serve.logs import configure_logs
from scorer.serve.settings_source import SettingsSource
from scorer.sources.fetching import ScrapeLimits
from scorer.sources.fleet_file import FleetFileSource
from scorer.sources.settings_file import dump_settings
from scorer.store import Retention

_DAY = 86_400.0
_MIB = 1024 * 1024
_FILE = click.Path(dir_okay=False, path_type=Path)
_PORT = click.IntRange(0, 65535)


@click.command(name="serve")
@click.option("--fleet", type=_FILE, help="Fleet file: nodes, labels, GPUs, exporters, bound pods (YAML).")
@click.option("--config", type=_FILE, help="Settings file (YAML); the defaults where there is none.")
@click.option("--db", type=_FILE, default=Path("gpugrade.db"), show_default=True, help="Database; made if missing.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in Mode]),
    help="How far the extender goes; wins over the settings file. Default: observe.",
)
@click.option("--dump-config", is_flag=True, help="Print the settings in force as a settings file and leave.")
@click.option("--listen-host", default="127.0.0.1", show_default=True, help="Address of the three doors.")
@click.option("--scheduler-port", type=_PORT, default=9440, show_default=True, help="Scheduler; 0: any free.")
@click.option("--grpc-port", type=_PORT, default=9441, show_default=True, help="gRPC; 0: any free.")
@click.option("--admin-port", type=_PORT, default=9442, show_default=True, help="Health, metrics, page; 0: any free.")
@click.option("--ports-file", type=_FILE, help="Write the ports in use there, as JSON.")
@click.option("--fold-interval", type=Real(0.05, 3600), default=1.0, show_default=True, help="Seconds.")
@click.option("--scrape-interval", type=Real(0.1, 3600), default=15.0, show_default=True, help="Seconds.")
@click.option("--retention-days", type=Real(0.01, 3660), default=30.0, show_default=True)
@click.option("--max-db-mib", type=click.IntRange(1), default=8192, show_default=True, help="Oldest samples go first.")
@click.option("--reflection/--no-reflection", default=True, show_default=True, help="gRPC reflection.")
@click.option("--tls-cert", type=_FILE, help="Certificate of the scheduler's door (PEM).")
@click.option("--tls-key", type=_FILE, help="Its key (PEM).")
@click.option("--tls-client-ca", type=_FILE, help="Callers of the scheduler's door must show a certificate of this CA.")
@click.option("--grpc-tls-cert", type=_FILE, help="Certificate of the gRPC door (PEM); probes show their tokens there.")
@click.option("--grpc-tls-key", type=_FILE, help="Its key (PEM).")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def command(
    fleet: Path | None,
    config: Path | None,
    db: Path,
    mode: str | None,
    dump_config: bool,
    listen_host: str,
    scheduler_port: int,
    grpc_port: int,
    admin_port: int,
    ports_file: Path | None,
    fold_interval: float,
    scrape_interval: float,
    retention_days: float,
    max_db_mib: int,
    reflection: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    grpc_tls_cert: Path | None,
    grpc_tls_key: Path | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the server: take probe reports, scrape exporters, grade, answer the scheduler.

    It listens on the loopback address alone unless --listen-host says otherwise; nodes without a token in the fleet
    file may report only there. SIGTERM ends it after the requests under way, a second one at once.
    """
    settings = SettingsSource(config, None if mode is None else Mode(mode))
    if dump_config:
        click.echo(dump_settings(settings.current()), nl=False)
        return
    if fleet is None:
        raise click.UsageError("name a fleet file with --fleet; it lists the nodes")
    configure_logs(log_format, log_level)
    options = ServeOptions(
        db=db,
        host=listen_host,
        scheduler_port=scheduler_port,
        grpc_port=grpc_port,
        admin_port=admin_port,
        ports_file=ports_file,
        fold_interval_s=fold_interval,
        scrapes=ScrapeLimits(interval_s=scrape_interval),
        retention=Retention(max_age_s=retention_days * _DAY, max_bytes=max_db_mib * _MIB),
        evidence_s=min(21.0, retention_days) * _DAY,
        reflection=reflection,
        tls=_tls("--tls", tls_cert, tls_key, tls_client_ca),
        grpc_tls=_tls("--grpc-tls", grpc_tls_cert, grpc_tls_key),
    )
    source = FleetFileSource(fleet, settings.current().placement.topology)
    Server(options, source, settings).run()


def _tls(flag: str, certificate: Path | None, key: Path | None, client_ca: Path | None = None) -> Tls | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError(f"TLS needs both {flag}-cert and {flag}-key")
    return Tls(certificate, key, client_ca)
