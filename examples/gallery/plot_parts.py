"""
What are the parts of a model?
==============================

Twelve clinics predict how many days a patient stays, from one reading. Eleven are alike. *Middle* is different, and
*Right* has only four patients. What does each learn from the others, and what does it keep for itself?
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from elmesh import MultiTaskELMRegressor, stack_tasks

rng = np.random.default_rng(3)


def patients(n, slope):
    reading = rng.uniform(-2, 2, size=n)
    days = 6 + 2 * np.tanh(1.5 * reading) + slope * reading + rng.normal(scale=0.6, size=n)
    return reading[:, None], days


tables = {f"clinic {k}": patients(60, 0.2 * rng.normal()) for k in range(9)}
tables |= {"Left": patients(40, 0.0), "Middle": patients(60, -1.8), "Right": patients(4, 0.0)}
X, days, clinics = stack_tasks(tables)
model = MultiTaskELMRegressor(random_state=0).fit(X, days, tasks=clinics)

# %%
# A clinic that was not in the fit is predicted by the common part alone, so the prediction for any new name draws it.
# The band is where nine of ten new patients of the clinic should be.

grid = np.linspace(-2, 2, 100)[:, None]
with warnings.catch_warnings(action="ignore"):  # the name is not a mistake here
    common = model.predict(grid, tasks=["a clinic that comes later"] * len(grid))

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
titles = {"Left": "like the others", "Middle": "different, 60 patients", "Right": "four patients"}
for ax, (clinic, title) in zip(axes, titles.items(), strict=True):
    own, deviation = model.predict(grid, tasks=[clinic] * len(grid), return_std=True)
    ax.fill_between(grid[:, 0], own - 1.645 * deviation, own + 1.645 * deviation, alpha=0.15, linewidth=0)
    ax.plot(grid, own, linewidth=2, label="the clinic's model")
    ax.plot(grid, common, "--", color="black", linewidth=1.2, label="common part")
    ax.plot(*tables[clinic], "o", color="0.35", markersize=3.5, label="patients")
    ax.set(title=f"{clinic}: {title}", xlabel="reading")
axes[0].set_ylabel("days in hospital")
axes[0].legend(loc="upper left", fontsize="small")
plt.show()

# %%
# *Left* nearly follows the common part. *Middle* has the rows to show that it is different, so its model leaves the
# common part. *Right* has no evidence that it differs, so it follows the others, with a slightly wider band.
print(model.part_shares(X, tasks=clinics).loc[list(titles)].round(2))
