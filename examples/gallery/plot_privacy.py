"""
What does privacy cost in accuracy?
===================================

Differential privacy adds noise to all that leaves a site, so that nobody can tell whether a certain patient was in its
table. A small *epsilon* is a strong promise and much noise. How much worse do predictions become, and when is a clinic
better off alone?
"""

import matplotlib.pyplot as plt
import numpy as np

from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor, Privacy
from elmesh.datasets import simulate_clinics

d = simulate_clinics(seed=0)


def score(solver, seed=0):
    model = MultiTaskELMRegressor(n_hidden=50, solver=solver, random_state=seed).fit(
        d.X_train, d.y_train, tasks=d.tasks_train
    )
    return model.score(d.X_test, d.y_test, tasks=d.tasks_test)


# %%
# Ranges of the inputs and of the target are declared: they come from common knowledge and not from the patients. The
# noise is drawn anew in each of three fits.

epsilons = [0.1, 0.5, 2, 10]
private = np.array(
    [
        [
            score(MeshELM(privacy=Privacy(epsilon, 1e-5, input_range=(-2, 2), target_range=(3, 13))), seed)
            for seed in range(3)
        ]
        for epsilon in epsilons
    ]
)

figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.fill_between(epsilons, private.min(axis=1), private.max(axis=1), alpha=0.2, linewidth=0)
ax.plot(epsilons, private.mean(axis=1), "o-", label="together, with differential privacy")
together, alone = score(MeshELM()), score(LocalELM())
ax.axhline(together, color="C2", linestyle="--", label="together, without noise")
ax.axhline(alone, color="C1", linestyle=":", label="alone: nothing leaves the clinic")
ax.set_xscale("log")
ax.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
ax.set(xlabel="epsilon: strong promise on the left, weak on the right", ylabel="R2 on new patients")
ax.set_ylim(alone - 0.4 * (together - alone), None)
ax.legend(loc="lower right")
plt.show()

# %%
# The band is the range of three fits. These are 631 patients in all; with more, the same epsilon costs less.
