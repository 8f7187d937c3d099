"""How many rows surely belong to sites that do not collude: whoever they are, and whatever they claim."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from elmesh.comm.row_counts import colluding_sites, round_down, sure_rows

counts = st.integers(0, 10**7)


@given(st.lists(counts, min_size=1, max_size=9), st.data())
def test_whoever_colludes_and_whatever_they_claim_the_others_have_as_many_rows(rows, data):
    m = len(rows)
    stated = [round_down(n) for n in rows]
    colluders = data.draw(st.sampled_from(list(combinations(range(m), colluding_sites(m)))))
    for site in colluders:
        stated[site] = data.draw(counts)
    honest = sum(n for site, n in enumerate(rows) if site not in colluders)
    assert sure_rows(stated) <= honest


@given(st.lists(counts, min_size=1, max_size=9))
def test_without_colluders_little_is_lost_but_the_largest_third(rows):
    kept = sorted(rows)[: len(rows) - colluding_sites(len(rows))]
    assert sure_rows([round_down(n) for n in rows]) >= sum(kept) / 2


@given(counts)
def test_a_number_is_rounded_down_to_one_digit(n):
    found = round_down(n)
    assert found <= n < 2 * max(found, 1)
    assert len(str(found).rstrip("0")) <= 1
