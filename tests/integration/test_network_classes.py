"""Classes in a network of real agents: what follows from all sites is the same at all of them."""

import collections
import json
import re

import numpy as np
import pytest

from elmesh import load
from elmesh.agent.run_security import needed_kinds
from elmesh.errors import UnknownSiteWarning
from helpers.forked import ForkedNetwork
from helpers.network import NAMES, ROOT, SUMS_REGRESSION, make_config, rows_of

SECURITY = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("n_hidden", "rows"), [(100, 40), (20, 200)])
def test_agents_agree_on_shares_of_classes_and_a_site_predicts_one_that_it_lacks_by_chance(tmp_path, n_hidden, rows):
    """With few rows all have one link; with many each has its own. The gate is that of docs/security.md."""
    (kinds,) = re.findall(r'^kinds = \[[^]]*"matrix"[^]]*\]', SECURITY, re.MULTILINE)
    fields = {**SUMS_REGRESSION, "kind": "classification", "n_hidden": n_hidden, "classes": ("died", "high", "low")}
    fields.pop("target_range")
    data = {}
    for k, name in enumerate(NAMES):
        data[name] = rows_of(name, rows)
        if name != "west":
            data[name].loc[np.random.default_rng(k).random(len(data[name])) < 0.04, "y"] = "died"
    every = [label for frame in data.values() for label in frame.y]
    counts = collections.Counter(every)
    assert counts["died"] >= 3
    with ForkedNetwork(tmp_path, make_config(NAMES, "ring", **fields), data) as network:
        for agent in network.agents.values():
            (agent.folder / "gate.toml").write_text(kinds + "\n")
        network.start_all()
        assert set(network.wait().values()) == {0}, network.logs()
        models = {name: load(network.agents[name].out) for name in NAMES}
        lines = (network.agents["west"].folder / "releases.jsonl").read_text().splitlines()
    assert {json.loads(line).get("what") for line in lines} == {None, "numbers", "block", "matrix"}
    west = models["west"]
    # A class with 3 % of the rows is missing among 40 by chance, and not among 200.
    assert ("died" in west.task_classes_["west"].tolist()) == (rows == 40)
    commons = [model.model_.common for model in models.values()]
    for common in commons:
        np.testing.assert_allclose(common.shares, [counts[c] / len(every) for c in ("died", "high", "low")], atol=1e-9)
    same = [common.temperature == commons[0].temperature for common in commons]
    assert all(same) == (n_hidden == 100)
    X = data["west"].drop(columns="y")
    if rows == 40:
        assert 0 < west.predict_proba(X, tasks=["west"] * len(X))[:, 0].mean() < 0.1
    for name, model in models.items():
        if name == "west" and rows == 200:
            continue  # its classes are its own
        with pytest.warns(UnknownSiteWarning):
            found = model.predict_proba(X, tasks=["other"] * len(X))
        assert 0.002 < found[:, 0].mean() < 0.15


def test_a_gate_that_a_network_cannot_meet_is_named_before_anything_leaves(tmp_path):
    with ForkedNetwork(tmp_path, make_config(("east", "north", "south"), "path", **SUMS_REGRESSION)) as network:
        north = network.agents["north"]
        (north.folder / "gate.toml").write_text('kinds = ["numbers", "matrix"]\n')
        network.start("north")
        assert network.wait("north") == {"north": 2}
        assert 'does not allow releases of kind "block"' in north.errors
        assert "this network needs numbers, block, matrix. Nothing has left." in north.errors
        lines = north.folder / "releases.jsonl"
        assert not lines.exists() or '"release"' not in lines.read_text()


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["numbers", "block", "matrix"]),
        ({"parameters": {"common": "auto", "private": "auto", "certify": False}}, ["numbers", "matrix"]),
        ({"parameters": {"mu1": 1.0, "mu2": 1.0}, "rank": 2}, ["numbers", "block"]),
        ({"epsilon": 1.0}, ["private"]),
    ],
)
def test_the_kinds_that_a_gate_must_allow_are_those_of_the_network_s_solver(changes, kinds):
    assert needed_kinds(make_config(NAMES, "ring", **{**SUMS_REGRESSION, **changes})) == kinds
