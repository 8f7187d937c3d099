"""
Can sites together predict what each of them rarely sees?
=========================================================

A complication occurs at one patient in ten. A clinic with thirty patients has seen it three times: too rarely to learn
from. Do eight clinics together know more?
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from elmesh import LocalELM, MeshELM, MultiTaskELMClassifier
from elmesh.datasets import simulate_visits

# Eight draws of the tables, because with a rare class every single one is noisy. Ely, with nine patients, has often not
# seen the complication at all. Alone it cannot learn then, so it is left out of both.
chance, truth = {"alone": [], "together": []}, []
for seed in range(8):
    visits, new, _ = simulate_visits(seed=seed)
    visits, new = visits[visits["clinic"] != "Ely"], new[new["clinic"] != "Ely"]
    columns = [name for name in visits.columns if name not in ("days", "complication")]
    truth.append(new["complication"] == "yes")
    for name, solver in {"alone": LocalELM(), "together": MeshELM()}.items():
        model = MultiTaskELMClassifier(task="clinic", solver=solver, random_state=0)
        model.fit(visits[columns], visits["complication"])
        yes = list(model.classes_).index("yes")
        chance[name].append(model.predict_proba(new[columns])[:, yes])
truth = np.concatenate(truth)
chance = {name: np.concatenate(values) for name, values in chance.items()}
print(pd.crosstab(visits["clinic"], visits["complication"]).T)

# %%
# A clinic can check some of its patients more closely, and takes those with the highest probability. How many of the
# complications are among them?

figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
checked = np.arange(1, len(truth) + 1) / len(truth)
for name, style in {"together": "-", "alone": "--"}.items():
    found = np.cumsum(truth[np.argsort(-chance[name], kind="stable")]) / truth.sum()
    ax.plot(checked, found, style, label=f"{name}: {found[np.searchsorted(checked, 0.3)]:.0%} if 30 % are checked")
ax.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="patients drawn by lot")
ax.axvline(0.3, color="0.85", zorder=0)
ax.set(xlabel="share of new patients checked", ylabel="share of complications found", xlim=(0, 1), ylim=(0, 1.02))
ax.legend(loc="lower right")
plt.show()
