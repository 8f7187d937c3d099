"""
How fast do the paper's algorithms converge?
============================================

The package has the algorithms of the paper that it extends. MTL-ELM has all data in one place; DMTL-ELM and FO-DMTL-ELM
send messages between neighbours. ``MeshELM(common=False, private=False)`` solves the same problem by sums over the
graph. How far is each from the optimum after a round?
"""

import warnings

import matplotlib.pyplot as plt
from sklearn.exceptions import ConvergenceWarning

from elmesh import DMTLELM, FODMTLELM, MTLELM, MeshELM, MultiTaskELMClassifier, TraceNorm
from elmesh.datasets import load_digits_tasks

warnings.simplefilter("ignore", ConvergenceWarning)  # rounds are limited on purpose
d = load_digits_tasks(seed=0)
settings = {"rank": 20, "mu1": 1.0, "mu2": 1.0, "max_iter": 100, "tol": 1e-9}


def history(solver):
    model = MultiTaskELMClassifier(n_hidden=100, solver=solver, random_state=0)
    return model.fit(d.X_train, d.y_train, tasks=d.tasks_train).history_


# %%
# The optimum is that of the convex problem behind all four, found by another algorithm (FISTA). With 20 columns U is
# large enough to reach it.

optimum = history(TraceNorm(mu1=1.0, mu2=1.0, tol=1e-9, max_iter=3000))["objective"].iloc[-1]
runs = {
    "MTL-ELM (one place)": history(MTLELM(**settings)),
    "DMTL-ELM (neighbours)": history(DMTLELM(**settings)),
    "FO-DMTL-ELM (neighbours)": history(FODMTLELM(**settings)),
    "MeshELM (sums)": history(MeshELM(common=False, private=False, **settings)),
}

figure, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
for (name, run), style in zip(runs.items(), ("-", "--", "-.", "-"), strict=True):
    above = (run["objective"] / optimum - 1).clip(lower=1e-9)
    ax.semilogy(run["round"], above, style, label=name, marker="o" if len(run) < 30 else None, markersize=4)
ax.set(xlabel="round", ylabel="objective above the optimum, relative")
ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
plt.show()

# %%
# A round of MeshELM is more than one exchange of messages: a sum over all sites passes the whole graph. ``history_``
# counts these exchanges, and the bytes.
for name, run in runs.items():
    last = run.iloc[-1]
    print(f"{name:25s} {last['round']:4.0f} rounds, {last['exchanges']:4.0f} exchanges, {last['bytes'] / 1e6:4.0f} MB")
