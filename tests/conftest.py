"""What tests of every level share."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured scheduler bodies, tool outputs, cases and measurements beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED.name}/ beside the checkout: its captures, samples and cases cannot be replayed")
    return SHARED
