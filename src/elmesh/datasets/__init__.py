"""Data sets: simulated clinics, digits split into tasks, and loaders of public data sets."""

from elmesh.datasets.public import (
    Digits,
    School,
    Usps,
    cache_folder,
    find_file,
    load_digits_tasks,
    load_kang_digits,
    load_mnist5k,
    load_school,
    load_usps,
    make_digit_tasks,
)
from elmesh.datasets.simulated import CLINICS, simulate_clinics, simulate_visits
from elmesh.datasets.task_split import TaskSplit

__all__ = [
    "CLINICS",
    "Digits",
    "School",
    "TaskSplit",
    "Usps",
    "cache_folder",
    "find_file",
    "load_digits_tasks",
    "load_kang_digits",
    "load_mnist5k",
    "load_school",
    "load_usps",
    "make_digit_tasks",
    "simulate_clinics",
    "simulate_visits",
]
