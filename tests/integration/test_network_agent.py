"""Sites in Python: a fit whose other tasks are elsewhere; here in other threads, with sessions of their own."""

import numpy as np
import pytest

from elmesh import LocalELM, MultiTaskELMClassifier
from elmesh.agent import Site
from elmesh.agent.network_agent import most_norm
from elmesh.errors import ElmeshError
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.network import BASIS, make_config, rows_of
from helpers.sites import all_here, estimator, fitted, together

PAIR = ("left", "right")


def identities(folder, config):
    NetworkLayout(folder, config).write("", days=2, keys=True, force=False)
    return [Identity.read(folder / name / "agent.toml") for name in config.agent_names]


def test_sites_end_where_one_process_does_and_each_has_its_own_model(tmp_path):
    config = make_config(PAIR, graph="path", rounds=60, rank=2)
    models, reference = together(config, tmp_path / "net", fitted), all_here(config)
    for t, (name, model) in enumerate(sorted(models.items())):
        assert list(model.tasks_) == [name]
        assert np.allclose(model.U_, reference.U_[t], rtol=0, atol=1e-10)
        assert np.allclose(model.A_[name], reference.A_[name], rtol=0, atol=1e-10)
        # Of the others it knows who they are and what it has told them.
        assert sorted(model.graph_) == config.agent_names
        assert model.n_iter_ == config.rounds
        sent = model.traffic_.set_index(["speaker", "hearer"]).loc[(name, *set(PAIR) - {name})]
        assert sent["messages"] == config.rounds + 1
        assert sent["bytes"] == 8 * config.n_hidden * config.rank * (config.rounds + 1)


def test_with_sums_everything_is_automatic_and_certified(tmp_path):
    config = make_config(PAIR, graph="path", exchange="sums", rank="auto", parameters={}, rounds=200)
    models, reference = together(config, tmp_path / "net", fitted), all_here(config)
    for name, model in models.items():
        assert model.stop_ is reference.stop_
        assert model.certificate_ is not None
        assert model.certificate_.gap < 0.05
        product = model.U_ @ model.A_[name]
        assert np.allclose(product, reference.U_ @ reference.A_[name], rtol=0, atol=1e-8)


def test_a_regression_is_scaled_by_what_the_network_file_declares(tmp_path):
    config = make_config(PAIR, graph="path", kind="regression", target_range=(-10.0, 10.0), rounds=200)
    models = together(config, tmp_path / "net", fitted)
    for name, model in models.items():
        frame = rows_of(name, kind="regression")
        assert model.target_scale_.tolist() == [1.0]  # nobody was told of the others' spread
        assert model.score(frame.drop(columns="y").to_numpy(), frame["y"], tasks=[name] * len(frame)) > 0.6


def test_statistics_are_those_of_all_rows_and_only_where_the_file_allows_them(tmp_path):
    columns = (InputColumn("x0"), InputColumn("x1", range=(-4.0, 4.0)))
    config = make_config(PAIR, graph="path", statistics=True, columns=columns)
    told = []
    found = together(
        config,
        tmp_path / "net",
        lambda site: site.scale(["x0"], {"x0": rows_of(site.name)["x0"].to_numpy()}),
        log=lambda event, **fields: told.append((event, fields)),
    )
    everything = np.concatenate([rows_of(name)["x0"].to_numpy() for name in PAIR])
    assert found["left"] == found["right"]
    assert np.allclose(found["left"]["x0"], (everything.mean(), everything.std()), rtol=1e-12)
    assert [fields["columns"] for event, fields in told if event == "statistics"] == [["x0"], ["x0"]]
    forbidden = make_config(PAIR, graph="path")
    with pytest.raises(ElmeshError, match="does not allow"):
        together(forbidden, tmp_path / "other", lambda site: site.scale(["x0"], {"x0": np.ones(3)}))


def test_a_site_has_one_task_and_a_solver_that_talks(tmp_path):
    config = make_config(PAIR, graph="path")
    first, _ = identities(tmp_path, config)
    X, y = np.ones((4, 2)), [0, 1, 0, 1]
    with Site(first) as site, site.hosting():
        with pytest.raises(ElmeshError, match="named as its agent: left"):
            estimator(config).fit(X, y, tasks=["other"] * 4)
        with pytest.raises(ElmeshError, match="dmtl-elm"):
            MultiTaskELMClassifier(solver=LocalELM()).fit(X, y, tasks=["left"] * 4)


def test_the_norm_that_a_neighbour_may_have_is_far_above_what_honest_ones_have(tmp_path):
    config = make_config(PAIR, graph="path", most_rows=60, rank=2)
    U = all_here(config).U_
    assert np.linalg.norm(U, axis=(1, 2)).max() < most_norm(config) / 10
    assert most_norm(make_config(PAIR, graph="path", parameters=BASIS | {"mu1": 4.0})) < most_norm(
        make_config(PAIR, graph="path")
    )
