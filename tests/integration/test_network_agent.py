"""Agents in Python: fits whose other tasks are elsewhere; here in other threads, with connections of their own."""

from __future__ import annotations

import numpy as np
import pytest

from elmesh import LocalELM, MultiTaskELMClassifier
from elmesh.agent import NetworkAgent
from elmesh.agent.backend import NetworkBackend
from elmesh.agent.column_scales import check_plausible, exchange_scales
from elmesh.agent.limits import max_norm
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn
from elmesh.run import RunConfig
from helpers.network import BASIS, make_config, rows_of
from helpers.thread_agents import estimator, fit_agent, fit_all, identities, run_agents

PAIR = ("left", "right")


def test_agents_compute_what_one_process_does_and_each_has_its_own_model(tmp_path):
    config = make_config(PAIR, graph="path", rounds=60, rank=2)
    models, reference = run_agents(config, tmp_path / "net", fit_agent), fit_all(config)
    for t, (name, model) in enumerate(sorted(models.items())):
        assert list(model.tasks_) == [name]
        assert np.allclose(model.U_, reference.U_[t], rtol=0, atol=1e-10)
        assert np.allclose(model.A_[name], reference.A_[name], rtol=0, atol=1e-10)
        # Of the others it knows their names and what it has sent them.
        assert sorted(model.graph_) == config.agent_names
        assert model.n_iter_ == config.rounds
        sent = model.traffic_.set_index(["sender", "receiver"]).loc[(name, *set(PAIR) - {name})]
        assert sent["messages"] == config.rounds + 1
        assert sent["bytes"] == 8 * config.n_hidden * config.rank * (config.rounds + 1)


def test_with_sums_everything_is_automatic_and_certified(tmp_path):
    config = make_config(PAIR, graph="path", exchange="sums", rank="auto", parameters={}, rounds=200)
    assert config.solver == "mesh-elm"
    models, reference = run_agents(config, tmp_path / "net", fit_agent), fit_all(config)
    for name, model in models.items():
        assert model.stop_ is reference.stop_
        assert model.certificate_ is not None
        assert model.certificate_.gap < 0.05
        product = model.U_ @ model.A_[name]
        assert np.allclose(product, reference.U_ @ reference.A_[name], rtol=0, atol=1e-8)


def test_a_regression_is_scaled_by_what_the_network_file_declares(tmp_path):
    config = make_config(PAIR, graph="path", kind="regression", target_range=(-10.0, 10.0), rounds=80)
    models = run_agents(config, tmp_path / "net", fit_agent)
    for name, model in models.items():
        frame = rows_of(name, kind="regression")
        assert model.target_scale_.tolist() == [1.0]  # no agent knows the spread of the others' targets
        assert model.score(frame.drop(columns="y").to_numpy(), frame["y"], tasks=[name] * len(frame)) > 0.6


def test_exchanged_statistics_are_those_of_all_rows(tmp_path):
    columns = (InputColumn("x0"), InputColumn("x1", range=(-4.0, 4.0)))
    config = make_config(PAIR, graph="path", statistics=True, columns=columns)
    logged = []
    found = run_agents(
        config,
        tmp_path / "net",
        lambda agent: exchange_scales(agent, rows_of(agent.name), ["x0"]),
        log=lambda event, **fields: logged.append((event, fields)),
    )
    everything = np.concatenate([rows_of(name)["x0"].to_numpy() for name in PAIR])
    assert found["left"] == found["right"]
    assert np.allclose(found["left"]["x0"], (everything.mean(), everything.std()), rtol=1e-12)
    assert [fields["columns"] for event, fields in logged if event == "statistics"] == [["x0"], ["x0"]]


def test_statistics_are_refused_unless_the_network_file_allows_them(tmp_path):
    (first, _) = identities(tmp_path, make_config(PAIR, graph="path"))
    with NetworkAgent(first) as agent:
        agent.open({})
        with pytest.raises(ElmeshError, match="does not allow"):
            exchange_scales(agent, rows_of("left"), ["x0"])


@pytest.mark.parametrize(
    ("scale", "plausible"),
    [
        ((50.0, 10.0), True),
        ((50.0, 2.5), True),
        ((50.0, 0.001), False),  # a count that is far too large makes every row a threshold
        ((5000.0, 10.0), False),  # a sum that is far too large moves all rows to one side
        ((50.0, 0.0), False),
    ],
)
def test_scales_that_the_own_rows_contradict_are_refused(scale, plausible):
    values = {"age": np.array([40.0, 60.0, 45.0, 55.0]), "absent": np.array([])}
    scales = {"age": scale, "absent": (0.0, 0.0)}
    if plausible:
        check_plausible(values, scales)
        return
    with pytest.raises(ElmeshError, match="an agent has sent wrong numbers"):
        check_plausible(values, scales)


def test_an_agent_has_one_task_and_a_solver_that_the_network_provides_for(tmp_path):
    config = make_config(PAIR, graph="path")
    first, _ = identities(tmp_path, config)
    X, y = np.ones((4, 2)), [0, 1, 0, 1]
    with NetworkAgent(first) as agent:
        run = RunConfig(backend=NetworkBackend(agent))
        with pytest.raises(ElmeshError, match="one task, which is named after it: left"):
            estimator(config).fit(X, y, tasks=["other"] * 4, run=run)
        with pytest.raises(ElmeshError, match=r"exchange nothing.*mesh-elm"):
            MultiTaskELMClassifier(solver=LocalELM()).fit(X, y, tasks=["left"] * 4, run=run)
        with pytest.raises(ElmeshError, match="AllReduce"):
            MultiTaskELMClassifier().fit(X, y, tasks=["left"] * 4, run=run)


def test_the_bound_on_a_neighbours_norm_is_far_above_that_of_a_solution():
    config = make_config(PAIR, graph="path", most_rows=60, rank=2)
    U = fit_all(config).U_
    assert np.linalg.norm(U, axis=(1, 2)).max() < max_norm(config) / 10
    larger = make_config(PAIR, graph="path", parameters=BASIS | {"mu1": 4.0})
    assert max_norm(larger) < max_norm(make_config(PAIR, graph="path"))


def test_a_target_that_the_table_cannot_have_is_an_error_before_there_is_a_run(tmp_path):
    (identity,) = [one for one in identities(tmp_path / "net", make_config(PAIR, graph="path")) if one.name == "left"]
    with NetworkAgent(identity) as agent, pytest.raises(ElmeshError, match='Column "x0" is used twice'):
        agent.fit(rows_of("left"), "x0", tmp_path / "model")
    assert not (identity.state / "run.json").exists()
