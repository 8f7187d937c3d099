"""Simulated patients of clinics: as arrays for comparisons, and as tables to try commands with. No row is real."""

from __future__ import annotations

import numpy as np
import pandas as pd

from elmesh.datasets.task_split import TaskSplit
from elmesh.typing import FloatArray

__all__ = ["CLINICS", "simulate_clinics", "simulate_visits"]

#: Training rows of each simulated clinic. Larch and Oak differ from the others, Maple is noisier, Rowan has six rows.
CLINICS = {
    "Alder": 40, "Beech": 120, "Cedar": 30, "Elm": 60, "Fir": 25, "Hazel": 80,
    "Juniper": 35, "Larch": 60, "Maple": 60, "Oak": 70, "Pine": 45, "Rowan": 6,
}  # fmt: skip
# Slopes of all clinics for age, body mass index, haemoglobin, walking score, other illnesses and pain; a direction
# along which clinics differ; and how far two clinics are along it. The others are near 0.
_SLOPES, _DIRECTION = (0.8, 0.2, -0.6, -0.9, 1.0, 0.3), (-0.3, 0.7, 0.3, 0.9, -1.1, -0.4)
_DIFFERENT = {"Larch": 1.4, "Oak": -1.2}
# Standard deviations among clinics of the level, of each slope and of the place along the direction; of the noise.
_LEVEL, _SLOPE, _PLACE, _NOISE, _LOUD = 0.5, 0.1, 0.2, 1.0, {"Maple": 3.0}
# Seed of what is fixed about the clinics; patients are drawn by the user's seed.
_CLINIC_SEED = 20

# Patients of each clinic in the tables of visits, and of one that comes later; Stroud treats other patients.
_VISITS = {"Bath": 140, "Derby": 60, "Ely": 9, "Leeds": 220, "Ripon": 25, "Stroud": 80, "Wells": 45, "York": 30}
_ODD, _LATER = "Stroud", {"Truro": 40}


def simulate_clinics(*, seed: int = 0, n_test: int = 100) -> TaskSplit:
    """Simulate patients of twelve clinics: six readings before a hip operation, and days in hospital after it.

    No row is a real patient. Ten of the clinics are alike up to their level and small differences of slopes; two of the
    ten are special: Maple has three times the noise, and Rowan has six training rows. Larch and Oak differ from the
    others, in opposite directions. What is true of a clinic is fixed; the seed draws its patients.

    Parameters
    ----------
    seed : int
        Seed of the patients.
    n_test : int
        Test rows per clinic; the training rows are :data:`CLINICS`.

    Returns
    -------
    TaskSplit
        Columns are age, body mass index, haemoglobin, walking score, other illnesses and pain, each with mean 0 and
        standard deviation 1; ``y`` is in days.

    Examples
    --------
    >>> split = simulate_clinics(seed=0)
    >>> split.X_train.shape, int((split.tasks_train == "Rowan").sum())
    ((631, 6), 6)
    """
    clinics, patients = np.random.default_rng(_CLINIC_SEED), np.random.default_rng(seed)
    parts: tuple[list[FloatArray], ...] = ([], [], [], [])
    for name, n_train in CLINICS.items():
        place = _PLACE * clinics.normal() + _DIFFERENT.get(name, 0.0)
        slopes = np.array(_SLOPES) + place * np.array(_DIRECTION) + _SLOPE * clinics.normal(size=6)
        level = 8.0 + _LEVEL * clinics.normal()
        X = patients.normal(size=(n_train + n_test, 6))
        bends = 0.5 * np.maximum(X[:, 0], 0.0) ** 2 + 0.6 * np.tanh(2.0 * X[:, 3] * X[:, 4])
        y = level + X @ slopes + bends + _LOUD.get(name, _NOISE) * patients.normal(size=len(X))
        for part, rows in zip(parts, (X[:n_train], y[:n_train], X[n_train:], y[n_train:]), strict=True):
            part.append(rows)
    X_train, y_train, X_test, y_test = map(np.concatenate, parts)
    names = np.array(list(CLINICS))
    return TaskSplit(
        X_train, y_train, np.repeat(names, list(CLINICS.values())), X_test, y_test, np.repeat(names, n_test)
    )


def simulate_visits(*, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Simulate tables of patients of eight clinics, as real ones are: words, dates, gaps and a rare class.

    No row is a real patient. Ely has nine patients and Leeds 220; Stroud treats patients of another kind.

    Parameters
    ----------
    seed : int
        Seed of the patients.

    Returns
    -------
    train, new, later : DataFrame
        Past patients, new ones of the same clinics, and those of a clinic that comes later. The columns are clinic,
        admitted (a date), age, sex, ward, haemoglobin (with gaps), walking (0 to 10) and illnesses; the targets are
        days, in hospital, and complication, "yes" at about one patient in ten.

    Examples
    --------
    >>> train, new, later = simulate_visits(seed=0)
    >>> len(train), train["clinic"].nunique(), later["clinic"].unique().tolist()
    (609, 8, ['Truro'])
    """
    clinics, patients = np.random.default_rng(_CLINIC_SEED), np.random.default_rng(seed)
    tables: dict[str, list[pd.DataFrame]] = {"train": [], "new": [], "later": []}
    for name, n_train in (_VISITS | _LATER).items():
        level, slope = clinics.normal(0.0, 1.0), clinics.normal(0.0, 0.15, size=3)
        n_new = 30
        n = n_train + n_new
        age = np.clip(patients.normal(68.0, 11.0, n), 18.0, 97.0).round()
        walking, illnesses = patients.integers(0, 11, n), patients.poisson(1.2, n)
        haemoglobin = patients.normal(13.2, 1.4, n)
        surgical = patients.random(n) < 0.6
        day = patients.integers(0, 730, n)
        effects = np.array([1.1, -0.35, 1.0]) + slope
        if name == _ODD:
            effects = np.array([-0.6, 0.4, 0.2])
        inputs = np.column_stack([(age - 68.0) / 11.0, walking - 5.0, illnesses - 1.2])
        winter = np.cos(2 * np.pi * (day % 365) / 365)
        severity = inputs @ effects - 0.5 * (haemoglobin - 13.2) + 0.8 * surgical + 0.6 * winter
        days = np.maximum(7.0 + level + severity + patients.normal(0.0, 1.3, n), 0.5).round(1)
        risk = 1.0 / (1.0 + np.exp(3.4 - 0.6 * severity))
        table = pd.DataFrame(
            {
                "clinic": name,
                "admitted": (pd.Timestamp("2024-01-01") + pd.to_timedelta(day, unit="D")).strftime("%Y-%m-%d"),
                "age": age.astype(int),
                "sex": np.where(patients.random(n) < 0.5, "female", "male"),
                "ward": np.where(surgical, "surgery", "medicine"),
                "haemoglobin": np.where(patients.random(n) < 0.12, np.nan, haemoglobin.round(1)),
                "walking": walking,
                "illnesses": illnesses,
                "days": days,
                "complication": np.where(patients.random(n) < risk, "yes", "no"),
            }
        )
        if name in _LATER:
            tables["later"].append(table[:n_train])
        else:
            tables["train"].append(table[:n_train])
            tables["new"].append(table[n_train:])
    train, new, later = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    return train, new, later
