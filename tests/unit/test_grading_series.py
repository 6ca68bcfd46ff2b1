"""Samples to series: the order in which the grader reads them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.grading.series import DIMENSIONS, flatten
from scorer.model.evidence import SampleColumns

# GPU rows on both sides of what sixteen bits hold, few enough for keys and times to repeat.
rows = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 9_362, 9_363, 119_999]),
        st.integers(0, DIMENSIONS - 1),
        st.integers(0, 6),
        st.sampled_from([1.0, 2.0, 4.0]),
    ),
    max_size=40,
)


def columns(samples: list[tuple[int, int, int, float]]) -> SampleColumns:
    gpu, dimension, at, value = (list(c) for c in zip(*samples, strict=True)) if samples else ([], [], [], [])
    count = len(samples)
    return SampleColumns(
        np.array(gpu, np.int32),
        np.array(dimension, np.uint8),
        np.array(at, np.float64),
        np.array(value, np.float64),
        np.zeros(count, np.uint8),
        np.full(count, -1, np.int32),
    )


@pytest.mark.parametrize("in_time_order", [True, False])
@given(samples=rows)
def test_series_are_ordered_by_gpu_dimension_time_and_value(
    in_time_order: bool, samples: list[tuple[int, int, int, float]]
) -> None:
    given_order = sorted(samples, key=lambda s: s[2]) if in_time_order else samples
    flat = flatten(columns(given_order), np.ones(len(samples), np.bool_))
    # z falls as the value rises.
    wanted = sorted(samples, key=lambda s: (s[0] * DIMENSIONS + s[1], s[2], -s[3]))
    assert flat.key.tolist() == [g * DIMENSIONS + d for g, d, _, _ in wanted]
    assert flat.at.tolist() == [at for _, _, at, _ in wanted]
    assert flat.z == pytest.approx([-np.log(v) for _, _, _, v in wanted])
    assert int(flat.count.sum()) == len(samples)
