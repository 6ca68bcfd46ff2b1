"""What tests of every level share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are seeded, and no test is judged by the clock of a busy machine. HYPOTHESIS_PROFILE=explore looks further.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of captured scheduler bodies, tool outputs, cases and measurements beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no {SHARED.name}/ beside the checkout: its captures, samples and cases cannot be replayed")
    return SHARED
