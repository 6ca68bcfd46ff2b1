"""What a traceback in the log shows: where it happened, never what the variables held."""

import logging
from collections.abc import Iterator

import pytest
import structlog

from scorer.serve.logs import configure_logs


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("library", [False, True], ids=["ours", "of a library"])
def test_a_traceback_shows_no_values(form: str, library: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(form, "info")
    token = "very-" + "secret"
    try:
        raise LookupError(f"{len(token)} characters")
    except LookupError:
        if library:
            logging.getLogger("some.library").exception("it failed")
        else:
            structlog.get_logger("ours").exception("it failed")
    told = capsys.readouterr().err
    assert "it failed" in told
    assert "LookupError" in told
    assert "11 characters" in told
    assert token not in told
