"""Bad tables, models and places for every command: it works, or ends in one sentence, and nothing is overwritten."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import elmesh
from elmesh.cli import app

SITES = ("alba", "bera", "cora")
#: The target of each model, and the other one, which it does not learn from.
TARGETS = {"amount": "grade", "grade": "amount"}
#: `make test` draws the pages of one table, `make test-all` those of all tables, and all targets.
DRAWN = [pytest.mark.drawings, pytest.mark.slow]
DRAWN_TOO = pytest.mark.parametrize("pages", ["without drawings", pytest.param("drawn", marks=DRAWN)])


def one_target(target: str) -> pytest.MarkDecorator:
    """Return a parameter of tests: each target, with drawings and without; `make test` takes one without."""
    every = [
        pytest.param(target),
        pytest.param(TARGETS[target], marks=pytest.mark.slow),
        *(pytest.param(name, marks=DRAWN, id=f"{name}, drawn") for name in TARGETS),
    ]
    return pytest.mark.parametrize("target", every)


CONFIDENTIAL = "note: This model was learned from rows without differential privacy."


def run(*args: object) -> Result:
    return CliRunner(env={"FORCE_COLOR": None, "NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args])


def works(*args: object, notes: tuple[str, ...] = ()) -> str:
    """Return what a command prints that works; standard error has notes that start with given words, and no more."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith(CONFIDENTIAL)]
    assert len(lines) == len(notes), lines
    for line, note in zip(lines, notes, strict=True):
        assert line.startswith(f"note: {note}")
    return result.stdout


def fails(folder: Path, *args: object) -> str:
    """Return the sentence of a command that fails; no file in the folder changes."""
    before = files(folder)
    result = run(*args)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    *notes, message = result.stderr.splitlines()
    assert all(note.startswith("note: ") for note in notes)
    assert message.startswith("elmesh: ")
    assert message.endswith((".", "?"))
    assert files(folder) == before
    return message


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def table(sites=SITES, rows: int = 12, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    n = len(sites) * rows
    x, z = rng.normal(size=(2, n))
    return pd.DataFrame(
        {
            "site": np.repeat(np.array(sites, dtype=object), rows),
            "x": x,
            "z": z,
            "ward": rng.choice(["red", "blue"], n),
            "day": pd.Timestamp("2023-01-02") + pd.to_timedelta(np.arange(n) % 500, unit="D"),
            "amount": 10 * (x - z) + rng.normal(size=n),
            "grade": np.where(x + z > 0, "pass", "fail"),
        }
    )


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def fit(frame: pd.DataFrame, folder: Path, target: str = "amount", *options: str, out: str = "model") -> list[object]:
    """Return the words of a fit of a table."""
    path = write(frame.drop(columns=TARGETS[target]), folder / "table.csv")
    return ["fit", path, "--task", "site", "--target", target, "--hidden", "3", *options, "--out", folder / out]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a table, and a model of each target."""
    folder = tmp_path_factory.mktemp("models")
    frame = table()
    write(frame, folder / "table.csv")
    for target, kind in (("amount", elmesh.MultiTaskELMRegressor), ("grade", elmesh.MultiTaskELMClassifier)):
        model = kind(3, task="site", random_state=0).fit(frame.drop(columns=list(TARGETS)), frame[target])
        model.save(folder / target)
    return folder


def of_rows(models: Path, target: str, rows: Path, out: Path) -> dict[str, list[object]]:
    """Return the words of every command that takes a model and rows; those of a new site are all named so."""
    own = rows
    with contextlib.suppress(OSError, ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = pd.read_csv(rows, dtype=str, keep_default_na=False, na_filter=False)
        if "site" in text and len(text):
            own = out / "rows-of-dora.csv"
            text.assign(site="dora").to_csv(own, index=False)
    return {
        "predict": ["predict", models / target, rows, "--out", out / "p.csv"],
        "evaluate": ["evaluate", models / target, rows],
        "add-site": ["add-site", models / target, own, "--site", "dora", "--out", out / "m"],
    }


ROWS_COMMANDS = pytest.mark.parametrize("command", ["predict", "evaluate", "add-site"])


def every_command(frame: pd.DataFrame, folder: Path, target: str, *fit_notes: str) -> None:
    """Run every command with a table, its model, and its first site."""
    works(*fit(frame, folder, target), notes=fit_notes)
    rows = write(frame, folder / "rows.csv")
    for words in of_rows(folder, "model", rows, folder).values():
        works(*words)
    site = frame["site"].iloc[0]
    works("export", folder / "model", "--site", site, "--onnx", folder / "m.onnx")
    assert len(pd.read_csv(folder / "p.csv")) == len(frame)


# ------------------------------------------------------------------------------------------------- sites and targets


@pytest.mark.parametrize(
    ("target", "n_sites"),
    [("amount", 25), *(pytest.param(*one, marks=pytest.mark.slow) for one in product(TARGETS, [150, 1000]))],
)
def test_many_sites_of_two_rows_are_learned(tmp_path, target, n_sites):
    note = f'Half of the {n_sites} sites in column "site" have fewer than 3 rows; check that it is the column with the'
    every_command(table([f"site {i}" for i in range(n_sites)], 2), tmp_path, target, note)


@one_target("amount")
def test_one_site_alone_is_learned_and_named_as_such(tmp_path, target):
    frame = table(["only"], 30)
    every_command(frame, tmp_path, target)
    works("export", tmp_path / "model", "--onnx", tmp_path / "without-site.onnx")
    again = works(*fit(frame, tmp_path, target, out="again"))
    assert "With one site there is no other to learn with" in again


@one_target("grade")
def test_a_target_that_is_constant_at_one_site_is_learned(tmp_path, target):
    frame = table()
    frame.loc[frame["site"] == "alba", target] = "pass" if target == "grade" else 5.0
    every_command(frame, tmp_path, target)


@pytest.mark.parametrize(("target", "value"), [("amount", 5), ("amount", 0.25), ("grade", "pass"), ("grade", True)])
def test_a_target_that_is_constant_everywhere_is_nothing_to_learn(tmp_path, target, value):
    message = fails(tmp_path, *fit(table().assign(**{target: value}), tmp_path, target))
    if value == 0.25:
        words = 'column "amount" has the value 0.25 in all rows: nothing to learn. Choose another column, or add rows'
    else:
        shown = value if isinstance(value, int) and value is not True else f"'{value}'"
        words = f"All rows have the class {shown}: nothing to learn. At least two classes are needed"
    assert words in message


@DRAWN_TOO
def test_a_class_at_one_site_only_is_a_class_of_that_site(tmp_path, pages):
    frame = table(rows=24)
    frame.loc[(frame["site"] == "bera") & (frame["x"] > -0.5), "grade"] = "merit"
    every_command(frame, tmp_path, "grade")
    classes = {
        site: json.loads(works("export", tmp_path / "model", "--site", site, "--onnx", tmp_path / site, "--json"))
        for site in ("alba", "bera")
    }
    assert [("merit" in made["outputs"][1]["about"]) for made in classes.values()] == [False, True]


@DRAWN_TOO
def test_sites_without_a_class_in_common_are_learned_and_take_no_further_site(tmp_path, pages):
    frame = table()
    frame["grade"] = frame["site"] + " " + frame["grade"]
    works(*fit(frame, tmp_path, "grade"))
    rows = write(frame, tmp_path / "rows.csv")
    message = fails(tmp_path, *of_rows(tmp_path, "model", rows, tmp_path)["add-site"])
    assert "this one has none: fit with mesh-elm's defaults, and with classes of which at least one is at" in message
    write(frame.assign(site="dora"), rows)
    for command in ("predict", "evaluate"):
        message = fails(tmp_path, *of_rows(tmp_path, "model", rows, tmp_path)[command])
        assert "Task 'dora' is not known; the model was fitted with 'alba', 'bera', 'cora'." in message


# ---------------------------------------------------------------------------------------------------------------- names


HOSTILE = ["مستشفى", "🏥", "e\u0301cole", "W" * 300, "都" * 100, "a/b", '"', "$x_$", r"$\frac$", "[red]r[/red]", "<b>",
           "tab\there", "..", "-x", "NUL", "{y}", "\N{RIGHT-TO-LEFT OVERRIDE}abc"]  # fmt: skip


COLUMNS = dict(zip(["x", "z", "ward", "day"], ["عمر المريض", "🩺 dose", "W" * 500, "$x_$ <b>"], strict=True))


@one_target("amount")
def test_sites_may_have_any_name(tmp_path, target):
    frame = table(HOSTILE, 6)
    every_command(frame, tmp_path, target)
    assert set(pd.read_csv(tmp_path / "p.csv")["site"]) == set(HOSTILE)
    page = (tmp_path / "model" / "report.html").read_text(encoding="utf-8")
    assert "مستشفى" in page
    assert "<b></th>" not in page
    shown = works("evaluate", tmp_path / "model", tmp_path / "rows.csv")
    assert "[red]r[/red]" in shown
    assert max(map(len, shown.splitlines())) < 250


@pytest.mark.slow
@one_target("grade")
def test_columns_may_have_any_name(tmp_path, target):
    every_command(table().rename(columns=COLUMNS), tmp_path, target)
    assert {"عمر المريض", "🩺 dose"} <= set(elmesh.load(tmp_path / "model").feature_names_in_)


@pytest.mark.drawings
def test_sites_and_columns_of_any_name_can_be_drawn_and_predicted(tmp_path):
    frame = table([*HOSTILE, "b\x1b[2J"], 3).rename(columns=COLUMNS)
    works(*fit(frame, tmp_path))
    page = (tmp_path / "model" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 5
    works("predict", tmp_path / "model", tmp_path / "table.csv", "--out", tmp_path / "p.csv")
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(frame)
    works("export", tmp_path / "model", "--site", "🏥", "--onnx", tmp_path / "m.onnx")


def test_a_folder_with_a_file_per_site_may_have_any_names(tmp_path):
    sites = tmp_path / "sites"
    sites.mkdir()
    names = ["مستشفى", "🏥", "e\u0301cole", "N" * 200]
    for seed, name in enumerate(names):
        write(table([name], 10, seed).drop(columns=["site", "grade"]), sites / f"{name}.csv")
    works("fit", sites, "--target", "amount", "--hidden", "3", "--out", tmp_path / "model")
    works("predict", tmp_path / "model", sites, "--out", tmp_path / "p.csv")
    assert set(pd.read_csv(tmp_path / "p.csv")["task"]) == set(names)


def test_long_names_are_cut_in_a_sentence(tmp_path):
    works(*fit(table(["a" * 500, "b"]), tmp_path))
    message = fails(tmp_path, "export", tmp_path / "model", "--onnx", tmp_path / "m.onnx")
    assert f"('{'a' * 59}…', 'b')" in message


def test_rows_that_name_other_sites_are_not_taken_as_those_of_the_new_one(models, tmp_path):
    add = ["add-site", models / "amount", models / "table.csv", "--site", "dora", "--out", tmp_path / "m"]
    message = fails(tmp_path, *add)
    assert "All rows are to be of 'dora', but column \"site\" has 'alba', 'bera', 'cora', too" in message
    pd.read_csv(models / "table.csv").assign(site="dora").to_csv(tmp_path / "dora.csv", index=False)
    works("add-site", models / "amount", tmp_path / "dora.csv", "--site", "dora", "--out", tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "kept"), [(" dora ", "dora"), pytest.param("d\u00f3ra", "d\u00f3ra", marks=pytest.mark.slow)]
)
def test_the_name_of_a_new_site_is_as_tables_have_it(models, tmp_path, name, kept):
    own = tmp_path / "own.csv"
    pd.read_csv(models / "table.csv").assign(site=kept).to_csv(own, index=False)
    works("add-site", models / "amount", own, "--site", name, "--out", tmp_path / "m")
    assert elmesh.load(tmp_path / "m").tasks_.tolist() == [*SITES, kept]


@pytest.mark.parametrize(("name", "words"), [("", "--site is empty; give the name"), ("  ", "--site is empty"),
                                             (" alba", "has a site 'alba' already; choose another")])  # fmt: skip
def test_a_new_site_needs_a_name_of_its_own(models, tmp_path, name, words):
    own = tmp_path / "own.csv"
    pd.read_csv(models / "table.csv").drop(columns="site").to_csv(own, index=False)
    add = ["add-site", models / "amount", own, "--site", name, "--out", tmp_path / "m"]
    assert words in fails(tmp_path, *add)


# --------------------------------------------------------------------------------------------------------------- files


def bad_file(kind: str, folder: Path) -> Path:
    path = folder / {"parquet": "rows.parquet", "no tables": "rows", "folder": "rows", "excel": "rows.xlsx"}.get(
        kind, "rows.csv"
    )
    contents = {
        "header": b"site,x,z,ward,day,amount,grade\n",
        "empty": b"",
        "blank": b"\n\n\n",
        "binary": bytes(range(256)) * 4,
        "twice": b"site,x,x,amount,grade\na,1,2,3,pass\nb,2,3,4,fail\n",
        "unnamed": b"site,,x,amount\na,1,2,3\n",
        "ragged": b"site,x,z,amount\na,1,2,3\nb,1\n",
        "parquet": b"PAR1 is not enough",
        "excel": b"PK",
    }
    if kind in contents:
        path.write_bytes(contents[kind])
    elif kind != "absent":
        path.mkdir()
        if kind == "folder":
            (path / "notes.txt").write_text("x,y\n1,2\n")
    return path


BAD_FILES = {
    "header": "rows.csv has a header but no rows; add some, or leave the file out",
    "empty": "rows.csv is empty; expected a header and rows",
    "blank": "rows.csv is empty; expected a header and rows",
    "binary": "rows.csv is not a text file; expected CSV",
    "twice": 'rows.csv: the header has the column "x" more than once; rename one',
    "unnamed": "rows.csv: column 2 has no name in the header; name it",
    "ragged": "rows.csv, line 3: 2 values where the header has 4; correct that line",
    "parquet": "rows.parquet is not a readable Parquet file; write it again",
    "excel": "rows.xlsx is neither CSV nor Parquet by its name; expected one that ends in",
    "absent": "rows.csv; check the name",
    "no tables": "rows holds no file that ends in .csv, .tsv, .parquet, .csv.gz, .tsv.gz; give one that does",
    "folder": "rows holds no file that ends in .csv, .tsv, .parquet, .csv.gz, .tsv.gz; give one that does",
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_table_that_cannot_be_read_is_named_by_every_command(models, tmp_path, kind):
    rows = bad_file(kind, tmp_path)
    commands = of_rows(models, "amount", rows, tmp_path)
    commands["add-site"][2] = rows
    commands["fit"] = ["fit", rows, "--task", "site", "--target", "amount", "--out", tmp_path / "model"]
    commands["tune"] = ["tune", *commands["fit"][1:]]
    for words in commands.values():
        assert BAD_FILES[kind] in fails(tmp_path, *words)


@pytest.mark.parametrize("forced", [False, True])
def test_a_place_that_holds_something_else_stays_as_it_is(models, tmp_path, forced):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years of work")
    (tmp_path / "notes").write_text("of today")
    force, rows = ["--force"] * forced, models / "table.csv"
    for place in (thesis, tmp_path / "notes"):
        for words in (
            ["fit", rows, "--task", "site", "--target", "amount", "--out", place],
            ["tune", rows, "--task", "site", "--target", "amount", "--out", place],
            ["add-site", models / "amount", rows, "--site", "dora", "--out", place],
        ):
            assert "exists and is not an elmesh model, so it is not replaced" in fails(tmp_path, *words, *force)
        predict = ["predict", models / "amount", rows, "--out", place]
        assert "expected a name that ends in .csv" in fails(tmp_path, *predict, *force)
    export = ["export", models / "amount", "--site", "alba", "--onnx", thesis]
    assert "thesis is a folder; give the name of a file, such as" in fails(tmp_path, *export, *force)
    assert "notes" in fails(tmp_path, "sample", tmp_path / "notes", *force)
    if not forced:
        assert "thesis exists; choose another name" in fails(tmp_path, "sample", thesis)
        assert "notes exists; choose" in fails(tmp_path, *export[:-1], tmp_path / "notes")


@pytest.mark.parametrize("missing", ["model.json", "weights.safetensors"])
def test_a_model_with_a_file_missing_is_refused_by_every_command(models, tmp_path, missing):
    shutil.copytree(models / "amount", tmp_path / "amount")
    (tmp_path / "amount" / missing).unlink()
    commands = of_rows(tmp_path, "amount", models / "table.csv", tmp_path)
    commands["export"] = ["export", tmp_path / "amount", "--site", "alba", "--onnx", tmp_path / "m.onnx"]
    for words in commands.values():
        message = fails(tmp_path, *words)
        assert f"has no file {missing}; it is not an elmesh model, or not all of it: give a whole one." in message


def test_what_is_no_model_is_refused_by_every_command(models, tmp_path):
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "has no file model.json"), ("absent", "There is no model at")):
        commands = of_rows(tmp_path, name, models / "table.csv", tmp_path)
        commands["export"] = ["export", tmp_path / name, "--onnx", tmp_path / "m.onnx"]
        for command in commands.values():
            assert words in fails(tmp_path, *command)


# ------------------------------------------------------------------------------------------------------------- new rows


CHANGED = {
    "a column missing": (
        lambda rows: rows.drop(columns="z"),
        'no column "z" in the table; the columns are site, x, ward',
    ),
    "a column renamed": (lambda rows: rows.rename(columns={"x": "X"}), 'no column "x" in the table; did you mean "X"?'),
    "text for numbers": (lambda rows: rows.assign(x="tall"), 'Column "x" must hold numbers, but line 2 has "tall"'),
    "dates for numbers": (lambda rows: rows.assign(x="2024-01-31"), "it holds dates or times; give it as numbers."),
    "numbers for dates": (lambda rows: rows.assign(day=5.5), 'Column "day" must hold dates such as 2024-03-31, but'),
    "text for dates": (lambda rows: rows.assign(day="soon"), 'but line 2 has "soon"; correct it, or leave the cell'),
    "an infinite number": (lambda rows: rows.assign(z=np.inf), 'Column "z" has an infinite value at line 2; correct'),
}


@ROWS_COMMANDS
@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("target", TARGETS)
def test_new_rows_with_other_columns_are_refused(models, tmp_path, target, change, command):
    alter, words = CHANGED[change]
    rows = write(alter(table(seed=1)), tmp_path / "rows.csv")
    message = fails(tmp_path, *of_rows(models, target, rows, tmp_path)[command])
    assert words in message
    if "column" in change and "missing" in change:
        assert "The model needs it: add it, with empty cells where values are missing." in message


@ROWS_COMMANDS
def test_new_rows_may_have_more_columns_in_any_order_and_gaps(models, tmp_path, command):
    frame = table(seed=1)
    frame.loc[::2, ["x", "ward", "day"]] = None
    rows = write(frame.assign(more=1)[["more", *frame.columns[::-1]]], tmp_path / "rows.csv")
    notes = ('Column "ward": missing values were never seen in training',)
    works(*of_rows(models, "amount", rows, tmp_path)[command], notes=notes)


@ROWS_COMMANDS
def test_numbers_for_words_are_words_that_were_never_seen(models, tmp_path, command):
    rows = write(table(seed=1).assign(ward=7), tmp_path / "rows.csv")
    notes = ('Column "ward": values such as "7" were never seen in training',)
    works(*of_rows(models, "amount", rows, tmp_path)[command], notes=notes)


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_rows_need_a_site(models, tmp_path, command):
    for frame, words in (
        (table().drop(columns="site"), 'There is no column "site" in the table'),
        (table().assign(site=None), '36 rows have no task in column "site", the first at line 2; fill it in'),
    ):
        rows = write(frame, tmp_path / "rows.csv")
        assert words in fails(tmp_path, *of_rows(models, "amount", rows, tmp_path)[command])


@pytest.mark.parametrize("command", ["evaluate", "add-site"])
def test_a_target_must_be_there_and_of_its_type(models, tmp_path, command):
    for target, frame, words in (
        ("amount", table().drop(columns="amount"), 'There is no column "amount" in the table'),
        ("amount", table().assign(amount=None), '36 rows have no target in column "amount"'),
        ("amount", table().assign(amount="much"), 'Column "amount" must hold numbers, but line 2 has "much"'),
        ("grade", table().assign(grade=None), '36 rows have no target in column "grade"'),
    ):
        rows = write(frame, tmp_path / "rows.csv")
        assert words in fails(tmp_path, *of_rows(models, target, rows, tmp_path)[command])


def test_a_class_that_was_not_in_training_counts_as_an_error_and_is_no_new_site(models, tmp_path):
    frame = table()
    frame.loc[3, "grade"] = "merit"
    commands = of_rows(models, "grade", write(frame, tmp_path / "rows.csv"), tmp_path)
    works(*commands["evaluate"], notes=("1 row has a class that was not in training; it counts as an error.",))
    assert "does not know the class 'merit'; it knows 'fail', 'pass'" in fails(tmp_path, *commands["add-site"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_rows_of_unknown_sites_only_are_predicted_with_a_note(models, tmp_path, target, command):
    rows = write(table(["dora", "elba"], 5), tmp_path / "rows.csv")
    note = "10 of 10 rows are of 'dora', 'elba', which were not in training"
    works(*of_rows(models, target, rows, tmp_path)[command], notes=(note,))
