"""
How many rows does a new site need?
===================================

A clinic joins later. It can predict from its first day by what the others have in common, and improves with every
patient of its own. When is it as good as with many, and how long would it take alone?
"""

import matplotlib.pyplot as plt
import numpy as np

from elmesh import LocalELM, MultiTaskELMRegressor
from elmesh.datasets import simulate_clinics

counts = (2, 4, 8, 16, 32, 60)


def curves(clinic, seed):
    """Fit the other clinics, then add this one with its first rows; return the squared errors on its new patients."""
    d = simulate_clinics(seed=seed)
    others, own, test = d.tasks_train != clinic, d.tasks_train == clinic, d.tasks_test == clinic
    X, y = d.X_train[own], d.y_train[own]
    X_new, y_new = d.X_test[test], d.y_test[test]
    model = MultiTaskELMRegressor(random_state=0).fit(d.X_train[others], d.y_train[others], tasks=d.tasks_train[others])
    joined, alone = [], []
    for n in counts:
        model.add_site(f"first {n}", X[:n], y[:n])
        joined.append(np.mean((model.predict(X_new, tasks=[f"first {n}"] * len(X_new)) - y_new) ** 2))
        own_model = MultiTaskELMRegressor(solver=LocalELM(), random_state=0).fit(X[:n], y[:n], tasks=[clinic] * n)
        alone.append(np.mean((own_model.predict(X_new, tasks=[clinic] * len(X_new)) - y_new) ** 2))
    return joined, alone


# %%
# ``add_site`` needs no other clinic to take part. The curves are means over three draws of the patients.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (clinic, title) in zip(axes, {"Hazel": "like the others", "Larch": "different"}.items(), strict=True):
    joined, alone = np.sqrt(np.mean([curves(clinic, seed) for seed in range(3)], axis=0))
    ax.plot(counts, alone, "s--", color="C1", label="alone")
    ax.plot(counts, joined, "o-", color="C0", label="joins the others")
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(n) for n in counts])
    ax.set(xlabel="patients of its own", title=f"{clinic}: {title}", ylim=(0, None))
axes[0].set_ylabel("error on new patients, days")
axes[0].legend()
plt.show()

# %%
# Hazel is like the others: it predicts well from its second patient. Larch is different, and there the others mislead
# it until it has some thirty patients: from few rows it cannot be known that a clinic is different. So compare with
# ``LocalELM`` on left-out rows before a site joins that may be of another kind; ``elmesh add-site`` shows this curve
# for your rows.
