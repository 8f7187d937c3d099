"""Dates as numbers: how they are read, what they become, and what is refused."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh.errors import ElmeshError
from elmesh.tables import TableSchema, fit_schema
from elmesh.tables.columns import ColumnType, parse_column
from elmesh.tables.dates import CYCLES, cycle_angles, days_of

moments = st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1))


def since_1970(moment: datetime.datetime) -> float:
    return (moment - datetime.datetime(1970, 1, 1)).total_seconds() / 86400


@given(moments)
def test_every_way_to_write_a_date_gives_the_same_number(moment):
    moment = moment.replace(microsecond=0)
    expected = since_1970(moment)
    forms = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S")
    texts = [moment.strftime(form).rjust(19, "0") for form in forms if moment.year >= 1000]
    for value in [*texts, moment, np.datetime64(moment), pd.Timestamp(moment)]:
        assert days_of(value) == pytest.approx(expected, abs=1e-9)
    day = moment.date()
    assert days_of(day) == days_of(day.isoformat()) == np.floor(expected)


@pytest.mark.parametrize("text", ["03/04/2024", "2024-13-01", "2024-02-30", "12:30", "", "soon", "2024"])
def test_what_is_no_certain_date_is_not_read(text):
    assert np.isnan(days_of(text))


@given(st.lists(st.none() | moments, min_size=1))
def test_a_column_has_the_same_numbers_as_text_as_objects_and_as_datetime64(values):
    values = [None if value is None else value.replace(microsecond=0) for value in values]
    expected = [np.nan if value is None else since_1970(value) for value in values]
    columns = [
        pd.Series(values, dtype=object),
        pd.Series([None if value is None else value.isoformat() for value in values], dtype=object),
        pd.Series(pd.to_datetime(pd.Series(values, dtype=object))),
    ]
    for column in columns:
        parsed = parse_column(column)
        np.testing.assert_allclose(parsed.numbers, expected, atol=1e-9)
        assert not parsed.not_numeric.any()
        if any(value is not None for value in values):
            assert parsed.column_type is ColumnType.DATE


def dated(days: pd.Series) -> tuple[pd.DataFrame, TableSchema]:
    frame = pd.DataFrame({"site": "a", "when": days, "y": np.arange(len(days)) % 2 + 0.5})
    return frame, fit_schema(frame, "site", ["y"], "regression")


def test_two_years_of_days_have_a_trend_a_year_and_a_week():
    frame, schema = dated(pd.Series(pd.date_range("2023-01-01", periods=730)))
    (column,) = schema.dates
    assert column.cycles == ("year", "week")
    X = schema.encode_features(frame)
    assert schema.feature_names == [
        "when", "when, sine of year", "when, cosine of year", "when, sine of week", "when, cosine of week",
    ]  # fmt: skip
    np.testing.assert_allclose(X[:, 0].mean(), 0, atol=1e-9)
    np.testing.assert_allclose(X[:, 0].std(), 1)
    np.testing.assert_allclose(X[:-7, 3:], X[7:, 3:], atol=1e-9)
    np.testing.assert_allclose(X[:, 1] ** 2 + X[:, 2] ** 2, 1)
    # Mondays are at the start of the week.
    mondays = frame["when"].dt.day_of_week == 0
    np.testing.assert_allclose(X[mondays, 4], 1)


def test_times_of_day_have_a_daily_cycle_and_missing_dates_are_marked():
    days = pd.Series(pd.date_range("2024-01-01", periods=60, freq="h"))
    days[[3, 7]] = pd.NaT
    frame, schema = dated(days)
    (column,) = schema.dates
    assert (column.cycles, column.indicator) == (("day",), True)
    X = schema.encode_features(frame)
    assert X[:, -1].tolist() == [float(k in (3, 7)) for k in range(60)]
    assert not X[3, :-1].any()
    # Midday is opposite of midnight.
    np.testing.assert_allclose(X[12, 2], -1)


def test_a_schema_with_dates_is_saved_and_read_back():
    frame, schema = dated(pd.Series(pd.date_range("2023-01-01", periods=400)))
    copy = TableSchema.from_json(schema.to_json())
    assert copy == schema
    assert schema.to_json()["version"] == 2
    np.testing.assert_array_equal(copy.encode_features(frame), schema.encode_features(frame))
    damaged = schema.to_json()
    damaged["dates"][0]["cycles"] = ["month"]
    with pytest.raises(ElmeshError, match=r"table.dates\[0\].cycles are not different cycles"):
        TableSchema.from_json(damaged)


def test_a_new_value_that_is_no_date_is_named():
    _, schema = dated(pd.Series(pd.date_range("2023-01-01", periods=40)))
    new = pd.DataFrame({"site": "a", "when": ["2024-01-01", "later"]})
    with pytest.raises(ElmeshError, match=r'must hold dates such as 2024-03-31, but row 2 has "later"'):
        schema.encode(new)
    (X, _) = schema.encode(pd.DataFrame({"site": "a", "when": ["2024-01-01", None]}))
    assert X.shape == (2, 3)


@given(st.floats(-1e5, 1e5), st.sampled_from(sorted(CYCLES)))
def test_an_angle_grows_by_a_turn_per_cycle(day, cycle):
    start, end = cycle_angles(np.array([day, day + CYCLES[cycle]]), cycle)
    assert end - start == pytest.approx(2 * np.pi)
