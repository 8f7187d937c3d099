"""
What happens to a site that is different?
=========================================

Two of twelve clinics, Larch and Oak, treat patients of another kind. If all rows were pooled into one model, these two
would be predicted badly. If every clinic learns alone, small clinics are. Does learning together protect both?
"""

import matplotlib.pyplot as plt
import numpy as np

from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor
from elmesh.datasets import simulate_clinics

d = simulate_clinics(seed=0)
solvers = {"alone": LocalELM(), "pooled": MeshELM(private=False, rank=0), "together": MeshELM()}
models = {
    name: MultiTaskELMRegressor(solver=solver, random_state=0).fit(d.X_train, d.y_train, tasks=d.tasks_train)
    for name, solver in solvers.items()
}
clinics = [clinic for clinic in models["together"].tasks_ if clinic != "Maple"]  # Maple is noisy, and off this scale
errors = {
    name: [
        np.sqrt(np.mean((model.predict(d.X_test[rows], tasks=d.tasks_test[rows]) - d.y_test[rows]) ** 2))
        for rows in (d.tasks_test == clinic for clinic in clinics)
    ]
    for name, model in models.items()
}

# %%
# Pooled, the two clinics that differ have by far the largest errors. Alone, Rowan with six patients has. Together, no
# clinic stands out. The bars on the right show why: the private part is large where a clinic differs.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
for (name, values), marker in zip(errors.items(), "sDo", strict=True):
    left.plot(values, clinics, marker, label=name, alpha=0.85)
left.set(xlabel="error on new patients, days", title="Errors")
left.legend(loc="upper center")
shares = models["together"].part_shares(d.X_test, tasks=d.tasks_test).loc[clinics]
start = np.zeros(len(clinics))
for part in ("common", "shared", "private"):
    right.barh(clinics, shares[part], left=start, label=part, height=0.7)
    start += shares[part]
right.set(xlabel="share of the prediction", title="What predictions are made of", xlim=(0, 1))
right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.32), ncols=3)
for ax in (left, right):
    ax.grid(axis="y", color="0.93")
    ax.set_axisbelow(True)
left.invert_yaxis()
plt.show()
