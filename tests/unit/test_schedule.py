"""When a network learns again."""

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.agent.schedule import Schedule
from elmesh.errors import ElmeshError

NIGHT = datetime(2026, 3, 1, 1, 30, tzinfo=UTC).timestamp()


@given(st.floats(0, 4e9), st.integers(1, 10**6))
def test_the_moments_of_an_interval_are_its_multiples_wherever_an_agent_starts(now, seconds):
    after = Schedule(seconds=seconds).next_after(now)
    assert after % seconds == 0
    assert now < after <= now + seconds + 1e-6


@given(st.floats(0, 4e9), st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_the_day_in_utc_is_the_next_one(now, hour, minute):
    after = Schedule.daily(f"{hour:02}:{minute:02}Z").next_after(now)
    assert now < after <= now + 86_400
    found = datetime.fromtimestamp(after, UTC)
    assert (found.hour, found.minute, found.second) == (hour, minute, 0)


def test_a_local_time_follows_the_clocks_of_the_place(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/London")
    time.tzset()
    try:
        schedule = Schedule.daily("02:30")
        # On the day before clocks go forward, and on the day after.
        saturday = datetime(2026, 3, 28, 12, 0, tzinfo=UTC).timestamp()
        sunday = schedule.next_after(saturday)
        monday = schedule.next_after(sunday)
        assert datetime.fromtimestamp(monday, UTC) == datetime(2026, 3, 30, 1, 30, tzinfo=UTC)
        assert saturday < sunday < monday
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_moment_that_has_passed_is_not_made_up_for():
    schedule = Schedule.daily("01:00Z")
    assert schedule.next_after(NIGHT) - NIGHT == 23.5 * 3600
    assert Schedule.every("24h").next_after(NIGHT + 3 * 86_400) == NIGHT + 3 * 86_400 + 22.5 * 3600


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)])
def test_intervals_have_a_unit(text, seconds):
    assert Schedule.every(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "24", "0h", "-1h", "1.5h", "24 h", "1w", "h"])
def test_other_intervals_are_refused_with_an_example(text):
    with pytest.raises(ElmeshError, match="such as 24h"):
        Schedule.every(text)


@pytest.mark.parametrize("text", ["", "2:00", "24:00", "02:60", "02:00:00", "2am", "02:00+01:00"])
def test_other_times_are_refused_with_an_example(text):
    with pytest.raises(ElmeshError, match="such as 02:00"):
        Schedule.daily(text)
