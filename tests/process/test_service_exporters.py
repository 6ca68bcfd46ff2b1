"""Exporters that misbehave, over real sockets: each is counted by its reason, and none gives a value."""

import gzip
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from scorer.sources.exporters import Scraper
from scorer.sources.fetching import OUTCOMES, ScrapeError, ScrapeLimits, fetch, make_pool
from tests.service_support import http_answer, raw_server, until

PAGE = b'# TYPE DCGM_FI_DEV_GPU_TEMP gauge\nDCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 41\n'
LIMITS = ScrapeLimits(interval_s=0.2, connect_s=1.0, read_s=0.4, total_s=0.8, max_bytes=1_000_000, workers=4)


def outcome(answer: Callable[[socket.socket], None]) -> str:
    with raw_server(answer) as url, make_pool(LIMITS) as pool:
        with pytest.raises(ScrapeError, match=r"\w") as caught:
            fetch(pool, url, LIMITS)
        return caught.value.outcome


def hangs(peer: socket.socket) -> None:
    peer.recv(1)


def sends(data: bytes) -> Callable[[socket.socket], None]:
    return lambda peer: peer.sendall(data)


def test_a_good_page_plain_gzip_and_chunked() -> None:
    packed = gzip.compress(PAGE)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE)
    for data in (http_answer(PAGE), http_answer(packed, "Content-Encoding: gzip\r\n"), chunked):
        with raw_server(sends(data)) as url, make_pool(LIMITS) as pool:
            assert fetch(pool, url, LIMITS) == PAGE.decode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (http_answer(b"<html><body>Sign in</body></html>\n", "Content-Type: text/html\r\n"), "not-metrics"),
        (http_answer(b"<html><body>Sign in</body></html>\n"), "not-metrics"),
        (http_answer(b"oops\n", status="500 Internal Server Error"), "status"),
        (http_answer(b"", "Location: http://127.0.0.1:1/\r\n", "302 Found"), "redirect"),
        (http_answer(PAGE, length=len(PAGE) + 100), "truncated"),
        (http_answer(PAGE[:-20]), "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\nDCGM_FI", "truncated"),
        (http_answer(b"\xff\xfe\x00\n"), "encoding"),
        (http_answer(b"not gzip at all\n", "Content-Encoding: gzip\r\n"), "encoding"),
        (http_answer(b"x" * 1_000_001), "too-large"),
        (http_answer(gzip.compress(b"a" * 50_000_000), "Content-Encoding: gzip\r\n"), "too-large"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "protocol"),
        (b"", "protocol"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_answers(data: Any, reason: Any) -> None:
    assert outcome(sends(data)) == reason


def test_an_exporter_that_hangs() -> None:
    assert outcome(hangs) == "timeout"


def test_nothing_listens() -> None:
    with make_pool(LIMITS) as pool, pytest.raises(ScrapeError) as caught:
        fetch(pool, "http://127.0.0.1:1/metrics", LIMITS)
    assert caught.value.outcome == "connect"


def drip(head: bytes) -> Callable[[socket.socket], None]:
    def answer(peer: socket.socket) -> None:
        peer.sendall(head)
        while True:
            peer.sendall(b"a")
            time.sleep(0.05)

    return answer


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=["head", "body"])
def test_a_dripping_exporter_is_cut_at_the_total_deadline(head: Any) -> None:
    scraper = Scraper(lambda *_: pytest.fail("a dripped page must not be handled"), LIMITS, random.Random(1))
    with raw_server(drip(head)) as url:
        scraper.set_targets({"gpu-0": url})
        scraper.start()
        until(lambda: scraper.outcomes["timeout"], "the drip is cut")
        scraper.stop()
    assert "gpu-0" in scraper.problems


def test_bad_exporters_do_not_hold_up_good_ones_and_recover() -> None:
    pages: list[str] = []
    broken = [True]

    def moody(peer: socket.socket) -> None:
        peer.sendall(http_answer(PAGE, status="503 Unavailable" if broken[0] else "200 OK"))

    scraper = Scraper(lambda node, text, at: pages.append(f"{node} {text} {at}"), LIMITS, random.Random(2))
    with (
        raw_server(moody) as mood,
        raw_server(hangs) as hang,
        raw_server(sends(http_answer(PAGE))) as good,
    ):
        scraper.set_targets({"moody": mood, "hang": hang, "good": good})
        scraper.start()
        until(lambda: sum(page.startswith("good ") for page in pages) >= 3, "the good one is scraped")
        until(lambda: set(scraper.problems) == {"moody", "hang"}, "both problems are known")
        assert scraper.outcomes["status"] > 0
        broken[0] = False
        until(lambda: set(scraper.problems) == {"hang"}, "the moody one is well again")
        scraper.set_targets({"good": good})
        until(lambda: not scraper.problems, "a node that left the fleet leaves no problem behind")
        scraper.stop()
    assert set(scraper.outcomes) == set(OUTCOMES)
