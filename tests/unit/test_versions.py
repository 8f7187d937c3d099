"""Versions of a model: numbered, complete, and switched in one step."""

import json
import shutil
import stat
import threading

import numpy as np
import pytest
from typer.testing import CliRunner

import elmesh
from elmesh import MultiTaskELMRegressor
from elmesh.cli import app
from elmesh.errors import ElmeshError
from elmesh.estimators.versions import ModelVersions


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three small models that differ."""
    folder, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(0)
    X, tasks = rng.normal(size=(40, 2)), np.repeat(["a", "b"], 20)
    for k in range(3):
        model = MultiTaskELMRegressor(n_hidden=5, random_state=k).fit(X, X[:, 0] + k, tasks=tasks)
        model.save(folder / str(k))
    return [folder / str(k) for k in range(3)]


def stage(versions, model):
    versions.folder.mkdir(exist_ok=True)
    shutil.copytree(model, versions.staging)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def versions(tmp_path, models):
    found = ModelVersions(tmp_path / "model")
    for k, model in enumerate(models):
        stage(found, model)
        assert found.add({"time": 0.0, "how": "network", "rows": 40 + k, "change": None}) == k + 1
    return found


def test_each_version_is_complete_and_the_last_one_is_in_the_models_place(versions, models):
    assert versions.numbers() == [1, 2, 3]
    assert versions.current() == 3
    assert content(versions.model) == content(models[2])
    assert not versions.staging.exists()
    elmesh.load(versions.model)  # checks every byte


def test_a_rollback_returns_to_any_version_and_loses_none(versions, models):
    back = invoke("rollback", versions.model)
    assert (back.exit_code, versions.current()) == (0, 2)
    assert "is version 2 now; it was version 3" in back.stdout
    assert invoke("rollback", versions.model).exit_code == 0
    assert content(versions.model) == content(models[0])
    none = invoke("rollback", versions.model)
    assert none.exit_code == 2
    assert "no version of" in none.stderr
    assert invoke("rollback", versions.model, "--to", 3).exit_code == 0
    assert (versions.current(), versions.numbers()) == (3, [1, 2, 3])
    absent = invoke("rollback", versions.model, "--to", 7)
    assert absent.exit_code == 2
    assert "There is no version 7" in absent.stderr
    assert content(versions.model) == content(models[2])
    assert [path.name for path in versions.model.parent.iterdir()].count(".tmp") == 0


def test_what_only_the_owner_can_read_stays_so(versions):
    for folder in (versions.model, versions.folder / "1"):
        assert stat.S_IMODE((folder / "statistics").stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "statistics" / "rows.safetensors").stat().st_mode) == 0o600
    assert stat.S_IMODE((versions.folder / "1.json").stat().st_mode) == 0o600


def test_whoever_reads_during_switches_finds_a_whole_model(versions):
    end, problems = threading.Event(), []

    def read():
        while not end.is_set():
            try:
                document = json.loads((versions.model / "model.json").read_bytes())
                assert document["format"] == "elmesh-model"
            except Exception as error:
                problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for k in range(6):
        versions.switch(k % 3 + 1)
    end.set()
    thread.join()
    assert problems == []


def test_a_model_from_before_becomes_a_version_and_one_that_was_changed_too(tmp_path, models):
    versions = ModelVersions(tmp_path / "model")
    shutil.copytree(models[0], versions.model)
    versions.prepare()
    versions.prepare()
    assert (versions.numbers(), versions.current(), versions.facts(1)) == ([1], 1, {})
    shutil.rmtree(versions.model)
    shutil.copytree(models[1], versions.model)
    assert versions.current() is None
    assert "is none of these versions" in invoke("versions", versions.model).stderr
    versions.prepare()
    assert (versions.numbers(), versions.current()) == ([1, 2], 2)


def test_the_oldest_are_removed_but_never_the_current_one_and_numbers_are_not_used_again(versions, models):
    versions.switch(1)
    versions.prune(2)
    assert versions.numbers() == [1, 2, 3]
    versions.switch(3)
    versions.prune(2)
    assert versions.numbers() == [2, 3]
    versions.prune(1)
    stage(versions, models[0])
    assert versions.add({}) == 4


def test_versions_are_listed_with_their_changes(versions, models):
    change = {"better": -0.25, "error": 0.05, "clearly": True}
    stage(versions, models[0])
    versions.add({"time": 0.0, "how": "alone", "rows": 50, "change": change})
    shown = invoke("versions", versions.model).stdout
    assert "4 (current)" in shown
    assert "-0.25 ± 0.05" in shown
    report = json.loads(invoke("versions", versions.model, "--json").stdout)
    assert (report["current"], [one["version"] for one in report["versions"]]) == (4, [4, 3, 2, 1])


def test_a_model_without_versions_is_a_sentence(tmp_path):
    found = invoke("versions", tmp_path / "model")
    assert found.exit_code == 2
    assert "There are no versions of" in found.stderr
    with pytest.raises(ElmeshError, match="there are none"):
        ModelVersions(tmp_path / "model").switch(1)
