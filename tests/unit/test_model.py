import contextlib
import hashlib
import json
import os

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from elmesh import files
from elmesh.data.features import HiddenLayer
from elmesh.data.tasks import group_rows
from elmesh.errors import ElmeshError
from elmesh.estimators.model import Head, MultiTaskModel
from helpers.examples import examples

ESTIMATOR = {"n_hidden": 4, "solver": {"name": "dmtl-elm", "rank": 2}, "fit_intercept": True}
EXTRA = {"columns": ["age", "size"], "note": "é\ud800", "score": 0.1, "nothing": None}


def refusal(call, *args, **kwargs):
    """The one message with which a call refuses its arguments."""
    with pytest.raises(ElmeshError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def make_head(rng, L=4, r=2, d=3, U=None, local=False, **rest):
    U = None if local else rng.normal(size=(L, r)) if U is None else U
    A = rng.normal(size=(L if local else U.shape[1], d))
    return Head(U, A, rng.normal(size=L), rng.normal(size=d), **rest)


def classifier(labels=("hull", "leeds", "york"), classes=("ant", "bee", "cat"), seed=0, **kwargs):
    rng = np.random.default_rng(seed)
    heads = {t: make_head(rng, classes=np.array(classes), temperature=0.1 + rng.random(), **kwargs) for t in labels}
    return MultiTaskModel("classification", HiddenLayer(2, 4, seed=seed), heads, ("age", "size"))


def regressor(d=1, seed=0, local=False):
    rng = np.random.default_rng(seed)
    heads = {t: make_head(rng, d=d, local=local) for t in (3, 10)}
    return MultiTaskModel("regression", HiddenLayer(5, 4, seed=seed), heads, None, 1 if d == 1 else 2)


def described(model):
    """All that a model is, in a form that compares by value and by bit."""
    heads = [
        (
            type(label),
            label,
            [None if a is None else (a.shape, a.tobytes()) for a in (h.U, h.A, h.h_mean, h.t_mean)],
            None if h.classes is None else (h.classes.dtype, h.classes.tolist()),
            h.temperature,
        )
        for label, h in model.heads.items()
    ]
    return model.kind, model.layer, model.feature_names, model.y_ndim, heads


def save(model, path, **kwargs):
    model.save(path, estimator=ESTIMATOR, extra=EXTRA, **kwargs)
    return path


def forge(folder, change=None, weights=None):
    """Alter a saved model as somebody would who also puts the checksums right."""
    document = json.loads((folder / "model.json").read_text())
    if weights is not None:
        (folder / "weights.safetensors").write_bytes(weights)
        document["weights"] = {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    if change is not None:
        change(document)
    document.pop("sha256", None)
    with contextlib.suppress(ValueError):
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "model.json").write_text(json.dumps(document))


@pytest.fixture
def saved(tmp_path):
    return save(classifier(), tmp_path / "model")


# heads and scores


def test_scores_are_the_centred_features_through_both_factors():
    rng = np.random.default_rng(0)
    head, H = make_head(rng), rng.normal(size=(6, 4))
    expected = [
        [
            sum((H[n, i] - head.h_mean[i]) * head.U[i, k] * head.A[k, j] for i in range(4) for k in range(2))
            + head.t_mean[j]
            for j in range(3)
        ]
        for n in range(6)
    ]
    np.testing.assert_allclose(head.scores(H), expected, rtol=1e-12)


def test_a_head_without_a_shared_factor_scores_as_with_the_identity():
    rng = np.random.default_rng(0)
    head, H = make_head(rng, local=True), rng.normal(size=(6, 4))
    with_identity = Head(np.eye(4), head.A, head.h_mean, head.t_mean)
    np.testing.assert_allclose(head.scores(H), with_identity.scores(H), rtol=1e-13)


def test_the_rows_of_each_task_are_scored_by_its_own_head():
    model, X = classifier(), np.random.default_rng(1).normal(size=(5, 2))
    groups = group_rows(["york", "hull", "york", "hull", "york"], 5)
    scores = model.scores(X, groups)
    assert list(scores) == ["hull", "york"]
    for label, rows in groups.items():
        np.testing.assert_allclose(scores[label], model.heads[label].scores(model.layer(X))[rows], rtol=1e-12)


def test_the_memory_layout_of_the_weights_does_not_change_a_score():
    rng = np.random.default_rng(0)
    head, H = make_head(rng, L=50, r=7, d=5), rng.normal(size=(31, 50))
    turned = Head(np.asfortranarray(head.U), np.asfortranarray(head.A), head.h_mean, head.t_mean)
    assert turned.scores(H).tobytes() == head.scores(H).tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"U": np.zeros((3, 2))},
        {"U": np.zeros(4)},
        {"A": np.zeros((3, 3))},
        {"A": np.zeros(2)},
        {"h_mean": np.zeros((4, 1))},
        {"h_mean": np.zeros(0)},
        {"t_mean": np.zeros(2)},
        {"U": np.full((4, 2), np.nan)},
        {"A": np.full((2, 3), np.inf)},
        {"temperature": 0.0},
        {"temperature": np.nan},
        {"temperature": np.inf},
        {"temperature": True},
        {"classes": np.array([1, 2])},
        {"classes": np.array([1, 3, 2])},
        {"classes": np.array([1, 1, 2])},
        {"classes": np.array([[1, 2, 3]])},
        {"classes": np.array([0.0, 1.0, np.nan])},
        {"classes": np.array([0.0, 1.0, np.inf])},
        {"classes": np.array([1, "a", "b"], dtype=object)},
        {"classes": np.array([b"a", b"b", b"c"])},
        {"classes": np.array([0, 1, 2], dtype="datetime64[s]")},
    ],
)
def test_a_head_whose_parts_do_not_belong_together_is_refused(change):
    parts = {"U": np.zeros((4, 2)), "A": np.zeros((2, 3)), "h_mean": np.zeros(4), "t_mean": np.zeros(3)}
    Head(**parts)
    with pytest.raises(ElmeshError):
        Head(**parts | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "clustering"}, "kind is 'clustering'"),
        ({"kind": "regression"}, "must have classes in classification"),
        ({"heads": {}}, "at least one task"),
        ({"heads": {1.5: None}}, "labels"),
        ({"heads": {"a": None, 1: None}}, "labels"),
        ({"layer": HiddenLayer(2, 5)}, "takes 4 features; the hidden layer gives 5"),
        ({"feature_names": ("age",)}, "2 input columns"),
        ({"feature_names": ("age", 3)}, "2 input columns"),
        ({"y_ndim": 3}, "y_ndim is 3"),
        ({"y_ndim": True}, "y_ndim is True"),
    ],
)
def test_a_model_whose_parts_do_not_belong_together_is_refused(change, message):
    model = classifier()
    parts = {name: getattr(model, name) for name in ("kind", "layer", "heads", "feature_names", "y_ndim")}
    assert message in refusal(MultiTaskModel, **parts | change)


def test_one_dimension_of_predictions_cannot_hold_two_outputs():
    assert "2 outputs" in refusal(MultiTaskModel, "regression", HiddenLayer(5, 4), regressor(d=2).heads, None, 1)


# one task alone


def test_a_task_alone_scores_as_in_the_whole_model():
    model, X = classifier(), np.random.default_rng(1).normal(size=(5, 2))
    groups = group_rows(["leeds"] * 5, 5)
    alone = model.for_task("leeds")
    assert list(alone.heads) == ["leeds"]
    assert alone.scores(X, groups)["leeds"].tobytes() == model.scores(X, groups)["leeds"].tobytes()


def test_a_task_alone_holds_no_memory_in_which_others_lie():
    rng = np.random.default_rng(0)
    U, A, h, t = (rng.normal(size=shape) for shape in [(3, 4, 2), (3, 2, 3), (3, 4), (3, 3)])
    classes = np.array([["a", "b", "c"]] * 3)
    heads = {k: Head(U[k], A[k], h[k], t[k], classes[k], 1.0) for k in range(3)}
    head = MultiTaskModel("classification", HiddenLayer(2, 4), heads).for_task(1).heads[1]
    for array in (head.U, head.A, head.h_mean, head.t_mean, head.classes):
        assert array.base is None
        assert not any(np.shares_memory(array, whole) for whole in (U, A, h, t, classes))


def test_the_file_of_a_task_alone_holds_nothing_of_the_others(tmp_path):
    rng = np.random.default_rng(0)
    heads = {t: make_head(rng, classes=np.array([f"{t} ant", f"{t} bee", f"{t} cat"])) for t in ("hull", "leeds")}
    model = MultiTaskModel("classification", HiddenLayer(2, 4), heads)
    model.for_task("leeds").save(tmp_path / "model", estimator={})
    content = b"".join(file.read_bytes() for file in (tmp_path / "model").iterdir())
    assert b"leeds ant" in content
    assert heads["leeds"].A.tobytes() in content
    assert b"hull" not in content
    for array in (heads["hull"].U, heads["hull"].A, heads["hull"].h_mean, heads["hull"].t_mean):
        for value in array.ravel():
            assert value.tobytes() not in content


@pytest.mark.parametrize("label", ["bath", 3, None, 1.5, ["hull"]])
def test_an_unknown_task_is_named_together_with_the_known_ones(label):
    message = refusal(classifier().for_task, label)
    assert repr(label) in message
    assert "'hull', 'leeds', 'york'" in message


def test_true_is_not_task_one_and_numpy_labels_are_plain_ones():
    model = classifier(labels=(0, 1))
    assert "True is not known" in refusal(model.for_task, True)
    assert [type(label) for label in model.for_task(np.int64(1)).heads] == [int]


# saving and loading


@pytest.mark.parametrize(
    "model",
    [
        classifier(),
        classifier(labels=(True, False)),
        classifier(labels=(2**70, -1)),
        classifier(labels=("", "é", "a/b", "\0", "\ud800")),
        classifier(classes=(-1, 0, 2**62)),
        classifier(classes=(0.1, 0.5, 1e300)),
        classifier(classes=np.array([0.1, 0.5, 1.5], dtype=np.float32)),
        classifier(classes=np.array([1, 2, 255], dtype=np.uint8)),
        classifier(classes=np.array([1, 2, 3], dtype=">i4")),
        classifier(classes=np.array(["a", "b", "é"], dtype="U20")),
        classifier(classes=np.array(["a", "a\0", "b"], dtype=object)),
        classifier(local=True),
        regressor(),
        regressor(d=3),
        regressor(local=True),
        MultiTaskModel("regression", HiddenLayer(4, None), regressor().heads),
    ],
)
def test_a_loaded_model_is_the_saved_one_to_the_bit(model, tmp_path):
    loaded, estimator, extra = MultiTaskModel.load(save(model, tmp_path / "model"))
    assert described(loaded) == described(model)
    assert estimator == ESTIMATOR
    assert extra == EXTRA


@examples(30, suppress=(HealthCheck.function_scoped_fixture,))
@given(rows=st.integers(1, 40), L=st.integers(1, 60), r=st.integers(1, 8), d=st.integers(1, 5), seed=st.integers(0, 99))
def test_predictions_after_loading_are_identical_to_the_bit(tmp_path, rows, L, r, d, seed):
    rng = np.random.default_rng(seed)
    U = np.asfortranarray(rng.normal(size=(L, r)))
    heads = {t: make_head(rng, L=L, d=d, U=U) for t in ("a", "b")}
    model = MultiTaskModel("regression", HiddenLayer(3, L, seed=seed), heads, None, 2)
    model.save(tmp_path / "model", estimator={}, overwrite=True)
    X, groups = rng.normal(size=(rows, 3)), group_rows(rng.choice(["a", "b"], size=rows), rows)
    before, after = model.scores(X, groups), MultiTaskModel.load(tmp_path / "model")[0].scores(X, groups)
    assert {t: s.tobytes() for t, s in before.items()} == {t: s.tobytes() for t, s in after.items()}


def test_without_extra_an_empty_dict_comes_back(tmp_path):
    classifier().save(tmp_path / "model", estimator={})
    assert MultiTaskModel.load(tmp_path / "model")[1:] == ({}, {})


@pytest.mark.parametrize("same_object", [True, False])
def test_a_factor_that_all_tasks_share_is_stored_once(tmp_path, same_object):
    rng = np.random.default_rng(0)
    U = rng.normal(size=(4, 2))
    heads = {t: make_head(rng, U=U if same_object else U.copy()) for t in range(20)}
    save(MultiTaskModel("regression", HiddenLayer(2, 4), heads, None, 2), tmp_path / "model")
    assert (tmp_path / "model" / "weights.safetensors").read_bytes().count(U.tobytes()) == 1
    loaded = MultiTaskModel.load(tmp_path / "model")[0]
    assert all(head.U is loaded.heads[0].U for head in loaded.heads.values())
    np.testing.assert_array_equal(loaded.heads[0].U, U)


def test_the_folder_holds_two_files_that_say_what_they_are(saved):
    assert sorted(file.name for file in saved.iterdir()) == ["model.json", "weights.safetensors"]  # without a card
    document = json.loads((saved / "model.json").read_text())
    weights = (saved / "weights.safetensors").read_bytes()
    assert document["format"] == "elmesh-model"
    assert document["format_version"] == 2
    assert document["kind"] == "classification"
    assert document["label_type"] == "str"
    assert [task["label"] for task in document["tasks"]] == ["hull", "leeds", "york"]
    assert document["feature_names"] == ["age", "size"]
    assert document["weights"] == {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    assert document["estimator"] == ESTIMATOR


class Odd:
    pass


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"a": {"b": Odd()}}, "'extra', 'a', 'b'"),
        ({"a": [np.int64(3)]}, "int64"),
        ({"a": float("nan")}, "nan"),
        ({1: "a"}, "the key 1"),
        ({"a": {"b", "c"}}, "set"),
        ({"a": 10**5000}, "could not be written"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_name_and_nothing_is_written(tmp_path, extra, message):
    assert message in refusal(classifier().save, tmp_path / "model", estimator={}, extra=extra)
    assert not list(tmp_path.iterdir())


def test_a_value_within_itself_is_refused(tmp_path):
    extra = {}
    extra["again"] = extra
    assert "could not be written" in refusal(classifier().save, tmp_path / "model", estimator={}, extra=extra)


# an existing path


def test_an_existing_path_is_not_overwritten(saved):
    before = described(MultiTaskModel.load(saved)[0])
    assert "exists already" in refusal(save, classifier(seed=1), saved)
    assert described(MultiTaskModel.load(saved)[0]) == before


@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "where the system cannot"])
def test_a_model_is_replaced_where_that_is_asked_for(saved, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(files, "exchange_folders", lambda a, b: False)
    save(classifier(seed=1), saved, overwrite=True)
    assert described(MultiTaskModel.load(saved)[0]) == described(classifier(seed=1))
    assert [file.name for file in saved.parent.iterdir()] == ["model"]


def test_a_damaged_model_can_be_replaced(saved):
    (saved / "weights.safetensors").unlink()
    text = (saved / "model.json").read_bytes()
    (saved / "model.json").write_bytes(text[: len(text) // 2])
    save(classifier(), saved, overwrite=True)
    MultiTaskModel.load(saved)


def test_an_empty_folder_can_be_replaced_when_asked(tmp_path):
    (tmp_path / "model").mkdir()
    assert "exists already" in refusal(save, classifier(), tmp_path / "model")
    MultiTaskModel.load(save(classifier(), tmp_path / "model", overwrite=True))


def test_what_is_not_a_model_is_never_overwritten(tmp_path, saved):
    file, folder, other_json = tmp_path / "file", tmp_path / "folder", tmp_path / "json"
    file.write_text("precious")
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")
    other_json.mkdir()
    (other_json / "model.json").write_text('{"format": "another"}')
    (saved / "notes.txt").write_text("precious")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for path in (file, folder, other_json):
        assert "is not an elmesh model" in refusal(save, classifier(), path, overwrite=True)
    assert "notes.txt" in refusal(save, classifier(seed=1), saved, overwrite=True)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_link_to_a_model_stays_a_link_when_the_model_is_replaced(saved, tmp_path):
    (tmp_path / "link").symlink_to(saved)
    save(classifier(seed=1), tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert described(MultiTaskModel.load(saved)[0]) == described(classifier(seed=1))


def test_folders_above_the_model_are_made(tmp_path):
    MultiTaskModel.load(save(classifier(), tmp_path / "a" / "b" / "model"))


def test_an_error_in_writing_names_the_path_and_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    message = refusal(save, classifier(), tmp_path / "file" / "model")
    assert "could not be written" in message
    assert str(tmp_path / "file" / "model") in message
    assert "could not be written" in refusal(save, classifier(), tmp_path / "nul\0")


class Crash(BaseException):
    pass


def crash(patch, at, for_good):
    """Make the step of that number fail; with ``for_good`` all later steps too, as if the process were dead."""
    done = []

    def counted(step):
        def run(*args, **kwargs):
            done.append(step)
            if len(done) == at or (for_good and len(done) > at):
                raise Crash
            return step(*args, **kwargs)

        return run

    for name in ("fsync", "rename", "replace", "mkdir", "open", "close", "unlink", "rmdir"):
        patch.setattr(os, name, counted(getattr(os, name)))
    patch.setattr(files, "exchange_folders", counted(files.exchange_folders))


def models_after_a_crash_at_each_step(folder, monkeypatch, *, overwrite, for_good=False):
    """Save repeatedly, each time with a crash one step later, until a save succeeds."""
    for at in range(1, 100):
        path = folder / str(at) / "model"
        path.parent.mkdir()
        if overwrite:
            save(classifier(), path)
        with monkeypatch.context() as patch:
            crash(patch, at, for_good)
            try:
                save(classifier(seed=1), path, overwrite=overwrite)
                finished = True
            except Crash:
                finished = False
        yield described(MultiTaskModel.load(path)[0]) if path.exists() else None
        if finished:
            return


def can_exchange(folder):
    for name in ("a", "b"):
        (folder / name).mkdir()
    return files.exchange_folders(folder / "a", folder / "b")


def test_a_process_that_dies_at_any_step_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch):
    if not can_exchange(tmp_path):
        pytest.skip("this file system cannot swap two folders in one step")
    old, new = described(classifier()), described(classifier(seed=1))
    found = list(models_after_a_crash_at_each_step(tmp_path, monkeypatch, overwrite=True, for_good=True))
    at = found.index(new)
    assert at > 5  # there were steps to fail
    assert found == [old] * at + [new] * (len(found) - at)


@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "where the system cannot"])
def test_a_step_that_fails_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "exchange_folders", lambda a, b: False)
    old, new = described(classifier()), described(classifier(seed=1))
    found = list(models_after_a_crash_at_each_step(tmp_path, monkeypatch, overwrite=True))
    at = found.index(new)
    assert at > 5  # there were steps to fail
    assert found == [old] * at + [new] * (len(found) - at)


@pytest.mark.parametrize("for_good", [True, False])
def test_a_first_save_that_fails_leaves_no_model_or_a_whole_one(tmp_path, monkeypatch, for_good):
    new = described(classifier(seed=1))
    found = list(models_after_a_crash_at_each_step(tmp_path, monkeypatch, overwrite=False, for_good=for_good))
    at = found.index(new)
    assert at > 5  # there were steps to fail
    assert found == [None] * at + [new] * (len(found) - at)


# files that are not as they were saved


def test_a_path_without_a_model_is_refused(tmp_path, saved):
    assert "no model at" in refusal(MultiTaskModel.load, tmp_path / "none")
    assert "is a file" in refusal(MultiTaskModel.load, saved / "model.json")
    assert "no model at" in refusal(MultiTaskModel.load, str(tmp_path / "nul\0"))
    (tmp_path / "empty").mkdir()
    assert "no file model.json" in refusal(MultiTaskModel.load, tmp_path / "empty")


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    assert f"no file {name}" in refusal(MultiTaskModel.load, saved)
    (saved / name).mkdir()
    assert f"no file {name}" in refusal(MultiTaskModel.load, saved)


def test_a_newer_version_asks_for_an_upgrade(saved):
    forge(saved, lambda document: document.update(format_version=3, elmesh_version="9.1"))
    message = refusal(MultiTaskModel.load, saved)
    assert "version 3" in message
    assert "elmesh 9.1" in message
    assert "upgrade elmesh" in message


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_a_version_that_cannot_be_is_an_altered_file(saved, version):
    forge(saved, lambda document: document.update(format_version=version))
    assert "altered" in refusal(MultiTaskModel.load, saved)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"1" * 10_000, '{"a": 1}'.encode("utf-16")],
)
def test_a_document_that_is_not_ours_is_refused_by_name(saved, text):
    (saved / "model.json").write_bytes(text)
    assert str(saved / "model.json") in refusal(MultiTaskModel.load, saved)


def test_a_number_beyond_json_cannot_slip_past_the_checksum(saved):
    text = (saved / "model.json").read_text()
    digest = json.loads(text)["sha256"]
    for checksum in (digest, "", "null"):
        (saved / "model.json").write_text(text.replace('"score": 0.1', '"score": 1e999').replace(digest, checksum))
        refusal(MultiTaskModel.load, saved)


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors"])
def test_a_file_cut_short_is_named(saved, name):
    data = (saved / name).read_bytes()
    for length in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        (saved / name).write_bytes(data[:length])
        assert name in refusal(MultiTaskModel.load, saved)


@pytest.mark.parametrize(
    ("old", "new"),
    [('"hull"', '"bath"'), ('"regression"', '"classification"'), ('"seed": 0', '"seed": 1'), ("0.1", "0.2")],
)
def test_an_altered_document_is_noticed(tmp_path, old, new):
    model = classifier() if old != '"regression"' else regressor()
    folder = save(model, tmp_path / "model")
    text = (folder / "model.json").read_text()
    assert old in text
    (folder / "model.json").write_text(text.replace(old, new))
    message = refusal(MultiTaskModel.load, folder)
    assert "altered" in message
    assert "model.json" in message


@pytest.mark.parametrize("extra", [-1, 1, 1000])
def test_weights_of_another_length_are_refused_with_both_lengths(saved, extra):
    size = (saved / "weights.safetensors").stat().st_size
    os.truncate(saved / "weights.safetensors", size + extra)
    assert f"has {size + extra} bytes where {size} were saved" in refusal(MultiTaskModel.load, saved)


def test_every_altered_bit_of_a_weight_is_noticed(saved):
    data = bytearray((saved / "weights.safetensors").read_bytes())
    for bit in range(8):
        data[-1] ^= 1 << bit
        (saved / "weights.safetensors").write_bytes(data)
        assert "weights.safetensors has been altered" in refusal(MultiTaskModel.load, saved)
        data[-1] ^= 1 << bit


def test_weights_of_another_model_are_noticed(saved, tmp_path):
    other = save(classifier(seed=1), tmp_path / "other")
    (other / "weights.safetensors").replace(saved / "weights.safetensors")
    assert "altered" in refusal(MultiTaskModel.load, saved)


alterations = st.tuples(
    st.sampled_from(["model.json", "weights.safetensors"]),
    st.sampled_from(["flip", "set", "cut", "delete", "insert"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 255),
)


def altered(data, how, where, byte):
    at = int(where * len(data))
    match how:
        case "flip":
            return data[:at] + bytes([data[at] ^ (1 << byte % 8)]) + data[at + 1 :]
        case "set":
            return data[:at] + bytes([byte]) + data[at + 1 :]
        case "cut":
            return data[:at]
        case "delete":
            return data[:at] + data[at + 1 + byte % 9 :]
        case _:
            return data[:at] + bytes([byte]) + data[at:]


def attempt(folder):
    """What loading gives: a model and its company, or the message of a refusal."""
    try:
        return MultiTaskModel.load(folder), None
    except ElmeshError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a saved model to alter; `restore` makes it whole again."""
    return save(classifier(), tmp_path_factory.mktemp("altered") / "model")


@pytest.fixture(scope="module")
def whole(folder):
    return {file: file.read_bytes() for file in folder.iterdir()}


def restore(whole):
    for file, data in whole.items():
        file.write_bytes(data)


@pytest.mark.thorough
@examples(300)
@given(changes=st.lists(alterations, min_size=1, max_size=3))
def test_altered_files_are_refused_or_make_no_difference(folder, whole, changes):
    restore(whole)
    for name, how, where, byte in changes:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(altered(data, how, where, byte) if data else b"")
    loaded, message = attempt(folder)
    if loaded is None:
        assert str(folder) in message
    else:
        assert (described(loaded[0]), *loaded[1:]) == (described(classifier()), ESTIMATOR, EXTRA)


# files that somebody made up, checksums included


@examples(200)
@given(where=st.floats(0, 0.9), how=st.sampled_from(["flip", "set", "delete", "insert"]), byte=st.integers(0, 255))
def test_made_up_weights_are_refused_or_make_a_model(folder, whole, where, how, byte):
    restore(whole)
    forge(folder, weights=altered((folder / "weights.safetensors").read_bytes(), how, where, byte))
    loaded, message = attempt(folder)
    if loaded is None:
        assert str(folder) in message
    else:
        assert all(np.isfinite(h.A).all() and h.A.shape == (2, 3) for h in loaded[0].heads.values())


def places(value, path=()):
    """All places in a JSON document, as the keys that lead there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def parent_of(document, place):
    for key in place[:-1]:
        document = document[key]
    return document


JUNK = [
    *[None, True, False, 0, -1, 2, 10**12, 10**30, 0.5, 1e308],
    *["", "x", "U9999999999", "object", "float128", [], [1], [[]], {}, {"a": 1}],
]


@pytest.mark.thorough
def test_a_made_up_value_anywhere_in_the_document_is_refused_or_makes_a_model(tmp_path):
    folder = tmp_path / "model"
    classifier(labels=["hull"], classes=("ant", "bee"), d=2).save(folder, estimator={})
    text = (folder / "model.json").read_text()
    for place in list(places(json.loads(text))):
        for junk in JUNK:
            (folder / "model.json").write_text(text)
            forge(folder, lambda d, place=place, junk=junk: parent_of(d, place).__setitem__(place[-1], junk))
            loaded, message = attempt(folder)
            if loaded is None:
                assert str(folder) in message, (place, junk)
            else:
                assert loaded[0].kind == "classification", (place, junk)
                assert all(isinstance(part, dict) for part in loaded[1:]), (place, junk)


def test_two_tasks_of_one_label_are_refused(saved):
    forge(saved, lambda document: document["tasks"][1].update(label="hull"))
    assert "'hull' occurs twice" in refusal(MultiTaskModel.load, saved)


def test_a_document_with_any_part_left_out_is_refused(folder, whole):
    restore(whole)
    free = ("estimator", "extra", "elmesh_version")  # a user's own, and a note
    for place in list(places(json.loads((folder / "model.json").read_text()))):
        if place[0] in free and place not in (("estimator",), ("extra",)):
            continue
        restore(whole)
        if place == ("sha256",):
            document = json.loads((folder / "model.json").read_text())
            del document["sha256"]
            (folder / "model.json").write_text(json.dumps(document))
        else:
            forge(folder, lambda d, place=place: parent_of(d, place).__delitem__(place[-1]))
        loaded, message = attempt(folder)
        assert loaded is None, place
        assert str(folder) in message, place


def tensors_of(folder):
    return safetensors.numpy.load((folder / "weights.safetensors").read_bytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t | {"A.0": t["A.0"].astype(np.float32)}, "float32"),
        (lambda t: t | {"A.0": t["A.0"] * np.nan}, "NaN"),
        (lambda t: t | {"A.0": t["A.0"].T.copy()}, "not those that model.json describes"),
        (lambda t: t | {"more": np.zeros(1)}, "not those that model.json describes"),
        (lambda t: {name: a for name, a in t.items() if name != "h_mean.1"}, "not those that model.json describes"),
        (lambda t: {}, "not those that model.json describes"),
    ],
)
def test_made_up_weights_that_are_not_as_described_are_refused(saved, change, message):
    forge(saved, weights=safetensors.numpy.save(change(tensors_of(saved))))
    assert message in refusal(MultiTaskModel.load, saved)


@pytest.mark.parametrize("shape", [[2**40], [2**62, 4], [2**63, 2**63]])
def test_a_declared_size_beyond_the_file_is_refused_before_memory_is_taken(saved, shape):
    size = int(np.prod([float(n) for n in shape])) * 8
    header = json.dumps({"A.0": {"dtype": "F64", "shape": shape, "data_offsets": [0, size]}}).encode()
    forge(saved, weights=len(header).to_bytes(8, "little") + header + bytes(64))
    assert "not a valid safetensors file" in refusal(MultiTaskModel.load, saved)
    forge(saved, weights=(2**60).to_bytes(8, "little") + header)
    assert "not a valid safetensors file" in refusal(MultiTaskModel.load, saved)


def test_a_folder_with_a_model_for_each_task_says_which_there_are(tmp_path):
    for task in ("north", "south"):
        one_task_model().save(tmp_path / "models" / task, estimator={})
    with pytest.raises(ElmeshError, match=r"holds a model for each task \('north', 'south'\); give one of these"):
        MultiTaskModel.load(tmp_path / "models")


def one_task_model():
    head = Head(None, np.ones((2, 1)), h_mean=np.zeros(2), t_mean=np.zeros(1))
    return MultiTaskModel("regression", HiddenLayer(2, None), {"a": head})
