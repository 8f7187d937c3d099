"""How much a fit will send, against what it has sent."""

from __future__ import annotations

import numpy as np
import pytest

from elmesh import MeshELM, MultiTaskELMClassifier, MultiTaskELMRegressor, RunConfig


@pytest.mark.parametrize("outputs", [1, 3, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("bits", [64, pytest.param(32, marks=pytest.mark.thorough)])
def test_the_estimate_is_near_what_a_fit_sends(outputs, classes, bits):
    rng = np.random.default_rng(0)
    X, tasks = rng.normal(size=(480, 4)), np.repeat(np.arange(8), 60)
    Y = X @ rng.normal(size=(4, outputs + classes)) + rng.normal(size=(480, outputs + classes))
    make, estimates = MultiTaskELMClassifier if classes else MultiTaskELMRegressor, []
    y = np.array([f"c{k}" for k in np.argmax(Y, axis=1).tolist()]) if classes else Y
    model = make(solver=MeshELM(rank=0, message_bits=bits), random_state=0)
    model.fit(X, y, tasks=tasks, run=RunConfig(on_estimate=estimates.append))
    (estimate,) = estimates
    sent = model.traffic_["bytes"].sum()
    assert estimate.least < sent
    assert estimate.start == pytest.approx(sent, rel=0.25)
