"""One table per site: twelve plants, each with a few weeks of readings, learn to predict their yield together.

The plants share two hidden modes of operation but weigh them differently; a plant alone has too few rows to see that.
"""

import numpy as np
from sklearn.metrics import r2_score

from elmesh import LocalELM, MeshELM, MultiTaskELMRegressor, stack_tasks

rng = np.random.default_rng(0)
modes = rng.normal(size=(20, 2))


def weeks(n, mix):
    readings = rng.normal(size=(n, 20))
    return readings, readings @ modes @ mix / 4 + 0.3 * rng.normal(size=n)


mixes = {f"plant-{k:02d}": rng.normal(size=2) for k in range(12)}
train = {plant: weeks(15, mix) for plant, mix in mixes.items()}
test = {plant: weeks(200, mix) for plant, mix in mixes.items()}

X, y, plants = stack_tasks(train)
X_new, y_new, plants_new = stack_tasks(test)
for solver in (LocalELM(mu=1.0), MeshELM(rank=2, graph="grid")):
    model = MultiTaskELMRegressor(n_hidden=None, solver=solver, random_state=0).fit(X, y, tasks=plants)
    print(f"{type(solver).__name__:9s} R2 on new weeks: {r2_score(y_new, model.predict(X_new, tasks=plants_new)):.2f}")
