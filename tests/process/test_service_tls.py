"""The doors of the server with certificates."""

import json
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from gpugrade.v1 import probe_pb2_grpc

from tests.process.service_server import command, report, serving
from tests.service_support import TOKEN, pb_sample


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates of this test")
def test_the_schedulers_door_with_client_certificates(tmp_path: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    # Python 3.13 and later insist on the use that a CA's key is for.
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", *usage)
    for name in ("server", "scheduler"):
        openssl("req", *new[:-2], "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    files = [
        f"--tls-cert={tmp_path}/server.pem",
        f"--tls-key={tmp_path}/server.key",
        f"--tls-client-ca={tmp_path}/ca.pem",
    ]
    with serving(tmp_path, *files) as server:
        url = f"https://127.0.0.1:{server.ports['scheduler']}/scheduler/filter"
        body = json.dumps({"Pod": {"metadata": {"name": "p"}}, "NodeNames": ["gpu-0"]}).encode()
        nobody = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof|closed"):
            urllib.request.urlopen(url, body, timeout=10, context=nobody)
        known = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        known.load_cert_chain(tmp_path / "scheduler.pem", tmp_path / "scheduler.key")
        with urllib.request.urlopen(url, body, timeout=10, context=known) as answer:
            assert json.loads(answer.read())["NodeNames"] == ["gpu-0"]
    arguments = command(tmp_path, f"--tls-cert={tmp_path}/fleet.yaml", f"--tls-key={tmp_path}/server.key")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--tls-cert" in done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate of this test")
def test_tokens_and_questions_travel_by_tls_where_the_grpc_door_has_a_certificate(tmp_path: Path) -> None:
    make = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    subprocess.run(
        [*make, *name, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True
    )
    files = (f"--grpc-tls-cert={tmp_path}/cert.pem", f"--grpc-tls-key={tmp_path}/key.pem")
    with serving(tmp_path, *files) as server:
        target = f"127.0.0.1:{server.ports['grpc']}"
        authority = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
        with grpc.secure_channel(target, authority) as channel:
            message = report(pb_sample("a", time.time()))
            metadata = (("authorization", f"Bearer {TOKEN} 0"),)
            stub = probe_pb2_grpc.ProbeIngestStub(channel)
            assert stub.Report(message, metadata=metadata, timeout=20).accepted == 1

        def ask(*options: str) -> subprocess.CompletedProcess[str]:
            argv = [sys.executable, "-m", "scorer.cli.main", "--server", target, "nodes", "-o", "name", *options]
            return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

        known = ask("--ca-file", str(tmp_path / "cert.pem"))
        assert "gpu-0" in known.stdout, known.stderr
        assert ask().returncode == 2
        missing = ask("--ca-file", "nowhere.pem")
        assert missing.returncode == 2
        assert "nowhere.pem cannot be read" in missing.stderr
    wrong = command(tmp_path, f"--grpc-tls-cert={tmp_path}/fleet.yaml", f"--grpc-tls-key={tmp_path}/key.pem")
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--grpc-tls-cert" in done.stderr
