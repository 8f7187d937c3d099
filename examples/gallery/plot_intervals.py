"""
Can I trust the intervals?
==========================

A prediction comes with a standard deviation. If a 90 % interval contains fewer than nine of ten new values, it promises
too much; if it contains all of them, it is useless. Is that right at every clinic, also at the noisy one and at the one
with six rows?
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm

from elmesh import MultiTaskELMRegressor
from elmesh.datasets import CLINICS, simulate_clinics

d = simulate_clinics(seed=0, n_test=400)
model = MultiTaskELMRegressor(random_state=0).fit(d.X_train, d.y_train, tasks=d.tasks_train)
days, deviation = model.predict(d.X_test, tasks=d.tasks_test, return_std=True)
distance = np.abs(days - d.y_test) / deviation

# %%
# A line near the diagonal is right, one above it is too careful, and one below it promises too much. The noise of a
# clinic is its own: Maple, with three times the noise, has wider intervals and not fewer hits. At Larch they are too
# wide.

levels = np.linspace(0.05, 0.99, 60)
special = {"Maple": "three times the noise", "Rowan": "six training rows", "Larch": "different"}
figure, ax = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
ax.plot([0, 1], [0, 1], color="black", linewidth=1)
for clinic in CLINICS:
    inside = [np.mean(distance[d.tasks_test == clinic] < norm.ppf(0.5 + level / 2)) for level in levels]
    known = clinic in special
    ax.plot(
        levels,
        inside,
        color=f"C{list(special).index(clinic)}" if known else "0.75",
        linewidth=2 if known else 1,
        label=f"{clinic}: {special[clinic]}" if known else None,
        zorder=2 + known,
    )
ax.set(xlabel="interval promised", ylabel="share of new patients inside", xlim=(0, 1), ylim=(0, 1))
ax.legend(loc="lower right", title="grey: the other clinics")
plt.show()
print(f"90 % intervals contain {np.mean(distance < 1.645):.0%} of all new patients")
