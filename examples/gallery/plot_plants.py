"""
Can plants with a few weeks of data predict their yield?
========================================================

Twelve plants measure twenty readings per week, and each has fifteen weeks. They share two modes of operation, but weigh
them differently. That is too little for a plant alone: it has fewer weeks than readings.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import r2_score

from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor, stack_tasks

rng = np.random.default_rng(0)
modes = rng.normal(size=(20, 2))


def weeks(n, mix):
    readings = rng.normal(size=(n, 20))
    return readings, readings @ modes @ mix / 4 + 0.3 * rng.normal(size=n)


mixes = {f"plant {k}": rng.normal(size=2) for k in range(1, 13)}
train = {plant: weeks(15, mix) for plant, mix in mixes.items()}
test = {plant: weeks(200, mix) for plant, mix in mixes.items()}

# %%
# One table per plant becomes rows with the name of a plant each. ``n_hidden=None`` leaves out hidden units: the truth
# is linear here.

X, y, plants = stack_tasks(train)
X_new, y_new, plants_new = stack_tasks(test)
predicted = {}
for name, solver in {"alone": LocalELM(mu=1.0), "together": MeshELM(rank=2, graph="grid")}.items():
    model = MultiTaskELMRegressor(n_hidden=None, solver=solver, random_state=0).fit(X, y, tasks=plants)
    predicted[name] = model.predict(X_new, tasks=plants_new)
    print(f"R2 on new weeks, {name}: {r2_score(y_new, predicted[name]):.2f}")

# %%
# Every plant is better together. The common part would not help here, since no two plants weigh the modes alike; it is
# the *shared* part that finds them.

scores = {
    name: [r2_score(y_new[plants_new == plant], yield_[plants_new == plant]) for plant in mixes]
    for name, yield_ in predicted.items()
}
order = np.argsort(scores["alone"])
figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.hlines(range(12), np.array(scores["alone"])[order], np.array(scores["together"])[order], color="0.8", linewidth=3)
for name, marker in {"alone": "s", "together": "o"}.items():
    ax.plot(np.array(scores[name])[order], range(12), marker, label=name)
ax.set_yticks(range(12), np.array(list(mixes))[order])
ax.set(xlabel="R2 on new weeks", xlim=(None, 1), title="Alone and together")
ax.legend(loc="lower right")
plt.show()
