"""Words for messages."""

from __future__ import annotations

import pytest

from elmesh.text import data_size


@pytest.mark.parametrize(
    ("n_bytes", "words"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_400, "999 kB"),
        (999_500, "1 MB"),
        (12_345_678, "12.3 MB"),
        (1_234_567_890, "1.23 GB"),
        (7.4e9, "7.4 GB"),
        (2.5e12, "2.5 TB"),
        (1.5e16, "15,000 TB"),
    ],
)
def test_a_size_has_three_digits_and_a_unit(n_bytes, words):
    assert data_size(n_bytes) == words
