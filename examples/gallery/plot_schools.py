"""
Does a small school gain by learning with others?
=================================================

Schools want to predict the exam score of a student. The gain should be largest where a school has few students of its
own: is that so? With the data set *School* (139 schools of London) in the folder that ``ELMESH_DATA`` names, this
example uses it. Otherwise it simulates sixty schools with 5 to 200 students.
"""

import matplotlib.pyplot as plt
import numpy as np

from elmesh import ElmeshError, MultiTaskELMRegressor
from elmesh.datasets import find_file, load_school


def simulated_schools(seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(5), np.log(200), size=60)).astype(int)
    school = np.repeat([f"school {k}" for k in range(60)], sizes)
    students = rng.normal(size=(sizes.sum(), 8))
    common, level = rng.normal(size=8), np.repeat(rng.normal(scale=0.7, size=60), sizes)
    own = np.repeat(0.3 * rng.normal(size=(60, 8)), sizes, axis=0)
    scores = students @ common + np.sum(students * own, axis=1) + level + 2 * rng.normal(size=len(students))
    return students, 20 + 5 * scores, school


try:
    find_file("school.npz")
    data = load_school()
    some = np.isin(data.tasks, np.unique(data.tasks)[:50])  # fewer, for speed
    X, scores, school = data.X[some], data.y[some], data.tasks[some]
    source = "School: 50 schools of London"
except ElmeshError:
    X, scores, school = simulated_schools()
    source = "sixty simulated schools"

# %%
# ``site_gains`` compares each school's error alone and together, on students that were left out.

model = MultiTaskELMRegressor(random_state=0).fit(X, scores, tasks=school)
gains = model.site_gains(X, scores, tasks=school)
print(source)
print(gains.sentence())

# %%
# A point is a school. Below zero, learning together is better. A filled point is a clear gain: its interval excludes
# zero. The errors of a school with five students are known from five students, so single points say little there. The
# line has the errors of a quarter of the schools together: smaller schools gain more, large ones lose nothing.

table = gains.table.sort_values("rows")
change = 100 * (table["together"] / table["alone"] - 1)
clear = table["high"] < 0
figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.axhline(0, color="black", linewidth=1)
ax.plot(table["rows"][~clear], change[~clear], "o", color="C0", fillstyle="none", alpha=0.6, label="no clear gain")
ax.plot(table["rows"][clear], change[clear], "o", color="C0", label="clear gain")
for part in np.array_split(np.arange(len(table)), 4):
    group = table.iloc[part]
    squares = [(group["rows"] * group[name] ** 2).sum() for name in ("together", "alone")]
    mean = 100 * (np.sqrt(squares[0] / squares[1]) - 1)
    ax.plot(group["rows"].iloc[[0, -1]], [mean, mean], color="C1", linewidth=3)
ax.set(xscale="log", xlabel="students of the school", ylabel="error together against alone, %", title=source)
ax.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
ax.minorticks_off()
ax.set_xlim(0.9 * table["rows"].min(), None)
ax.legend(loc="upper right")
ax.annotate("better together", (0.98, 0.04), xycoords="axes fraction", ha="right", color="0.4")
plt.show()
