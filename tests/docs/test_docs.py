"""All pages: their Python runs, their links are valid, their lists are those of the registry."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from msgspec.structs import fields

import paper
import solvers
from elmesh import load
from elmesh.agent.gate import Gate
from elmesh.netconfig.toml import decode_toml
from helpers.code_blocks import code_blocks, markdown_pages, run_python, small_sample

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in markdown_pages(ROOT)}


def test_the_python_of_every_page_is_tested():
    # That of the page on solvers is tested in a process of its own: tests/docs/test_commands.py.
    pages = (
        "compare", "explain", "export", "model", "privacy", "solvers", "tuning", "updates", "start/index",
        "how-to/scikit-learn", "understand/certificate", "understand/evidence", "understand/paper",
    )  # fmt: skip
    tested = {"README.md"} | {f"docs/{name}.md" for name in pages}
    assert {name for name, text in PAGES.items() if code_blocks(text, "python")} == tested


def test_the_python_of_the_first_page_has_gains_and_honest_intervals(tmp_path):
    printed = run_python("\n".join(code_blocks(PAGES["docs/start/index.md"], "python")), tmp_path)
    assert re.search(r"^Ely +9 ", printed, re.MULTILINE)
    (inside,) = re.findall(r"^(\d+)% of new patients", printed, re.MULTILINE)
    assert 80 < int(inside) < 98
    assert "Predictions depend most on" in printed
    assert load(tmp_path / "model").tasks_[0] == "Bath"


def test_the_python_of_the_page_on_scikit_learn_predicts_new_rows(tmp_path):
    code = "\n".join(code_blocks(PAGES["docs/how-to/scikit-learn.md"], "python"))
    searched = '{"n_hidden": [50, 200]}'
    assert searched in code
    printed = run_python(code.replace(searched, '{"n_hidden": [5, 20]}'), tmp_path).splitlines()
    assert -1.5 < float(printed[0]) < -0.5  # minus the mean absolute error in days
    assert float(printed[-2]) > 0.7
    assert printed[-1] == "130 [np.str_('Elm'), np.str_('Oak')]"


def test_the_python_of_the_page_on_evidence_finds_the_variance_that_was_simulated(tmp_path):
    text = PAGES["docs/understand/evidence.md"]
    best, *variances = run_python("\n".join(code_blocks(text, "python")), tmp_path).splitlines()
    assert f"print(round(best, 2))  # {best};" in text
    assert abs(float(best) - 0.5) < 0.1
    assert len(variances) == 5


def test_the_python_of_the_page_on_the_certificate_proves_an_optimum(tmp_path):
    code = "\n".join(code_blocks(PAGES["docs/understand/certificate.md"], "python"))
    certificate, small = run_python(code, tmp_path).splitlines()
    assert certificate.startswith("training objective within")
    assert small == "True"


def test_the_python_of_the_page_on_the_paper_runs_two_of_its_algorithms(tmp_path):
    code = "\n".join(code_blocks(PAGES["docs/understand/paper.md"], "python"))
    rows = [line.split() for line in run_python(code, tmp_path).splitlines()]
    assert [name for name, *_ in rows] == ["MTLELM", "DMTLELM"]
    assert all(float(score) > 0.95 and stop == "CONVERGED" for _, score, stop in rows)


def test_the_python_of_the_page_on_the_model_prints_what_the_page_states(tmp_path):
    printed = run_python("\n".join(code_blocks(PAGES["docs/model.md"], "python")), tmp_path)
    shares = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in printed.splitlines()[1:4]}
    assert shares["Larch"][0] < 0.7 * min(shares["Alder"][0], shares["Rowan"][0])
    assert shares["Rowan"][0] > 0.8
    noise = ast.literal_eval(re.search(r"^\{.*\}$", printed, re.MULTILINE).group())
    assert noise["Maple"] > 1.5 * max(noise["Alder"], noise["Rowan"])
    (inside,) = re.findall(r"^0\.\d+$", printed, re.MULTILINE)
    assert 0.85 < float(inside) < 0.95
    before, after = ast.literal_eval(re.search(r"^\[.*\]$", printed, re.MULTILINE).group())
    assert after < 0.6 * before
    assert "training objective within" in printed


def test_the_python_of_the_page_on_export_predicts_as_the_model_does(tmp_path):
    check = """
import pandas as pd
rows = pd.DataFrame({name: np.ravel(values) for name, values in patients.items()}).replace("", None)
rows["admitted"] = pd.Timestamp(0) + pd.to_timedelta(rows["admitted"], unit="D")
rows = rows.assign(clinic="Leeds")[X.columns]
np.testing.assert_allclose([days, std], model.predict(rows, return_std=True), rtol=1e-9)
"""
    with small_sample():
        printed = run_python("\n".join([*code_blocks(PAGES["docs/export.md"], "python"), check]), tmp_path)
    numbers = [float(number) for number in re.findall(r"[\d.]+", printed)]
    assert len(numbers) == 4
    assert min(numbers) > 0


def test_the_python_of_the_page_on_explanations_prints_and_draws_them(tmp_path):
    printed = run_python("\n".join(code_blocks(PAGES["docs/explain.md"], "python")), tmp_path)
    sentence, *_ = printed.splitlines()
    assert sentence.startswith("Predictions depend most on walking, age and illnesses")
    assert "Site Stroud differs most" in sentence
    assert len(re.findall(r"^Predictions depend most on walking", printed, re.MULTILINE)) == 2
    assert re.search(r"^medicine +\d", printed, re.MULTILINE)
    assert {path.name for path in tmp_path.glob("*.png")} == {"walking.png", "importance.png", "map.png"}


def test_the_python_of_the_page_on_privacy_is_better_than_alone(tmp_path):
    promise, score = run_python("\n".join(code_blocks(PAGES["docs/privacy.md"], "python")), tmp_path).splitlines()
    assert promise.startswith(
        "Differential privacy of single rows: epsilon 1, delta 1e-05 against 4 colluding sites of 12"
    )
    assert float(score) > 0.6


def test_the_gate_on_the_page_on_security_is_valid_and_names_every_field():
    (text,) = code_blocks(PAGES["docs/security.md"], "toml")
    gate = decode_toml(text, Gate, "gate.toml")
    assert set(re.findall(r"^(\w+) =", text, re.MULTILINE)) == {field.name for field in fields(Gate)}
    assert (gate.fewest_sites, gate.largest_epsilon, gate.confirm) == (5, 1.0, True)


#: The language of every block: what is not run or read as a file is output, a drawing, or a directive of the site.
LANGUAGES = {"sh", "python", "py", "toml", "text", ""}


def test_every_block_has_a_language_that_is_tested():
    for name, text in PAGES.items():
        opened = re.findall(r"^```([^`\n]*)$", text, re.MULTILINE)[::2]
        assert {language for language in opened if not language.startswith("{")} <= LANGUAGES, name


LINKS = [(name, link) for name, text in PAGES.items() for link in re.findall(r"\]\(([^):\s]+)\)", text)]


@pytest.mark.parametrize(("name", "link"), sorted(set(LINKS)))
def test_every_link_leads_to_a_file_or_a_heading(name, link):
    path, _, heading = link.partition("#")
    target = (ROOT / name).parent / path if path else ROOT / name
    assert target.exists()
    if heading:
        titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        assert heading in map(paper.anchor, titles)


def test_the_page_on_solvers_lists_the_registered_solvers():
    assert solvers.filled(PAGES["docs/solvers.md"]) == PAGES["docs/solvers.md"]


def test_the_table_of_methods_lists_the_registered_solvers():
    text = PAGES["docs/understand/methods.md"]
    (table,) = re.findall(r"^\| solver \|.*?\n\n", text, re.MULTILINE | re.DOTALL)
    listed = {name for row in table.strip().splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert listed == {cls.__name__ for cls in solvers.package_solvers().values()}


def test_modules_that_contributing_names_exist():
    text = PAGES["CONTRIBUTING.md"]
    source = ROOT / "src" / "elmesh"
    named = {path for path in re.findall(r"`([\w/]+\.py)`", text) if not path.startswith("tests/")}
    assert named
    missing = [path for path in named if not list(source.rglob(path)) and not (ROOT / path).exists()]
    assert missing == []


def test_the_architecture_in_contributing_lists_every_package():
    drawn = PAGES["CONTRIBUTING.md"].split("```")[3]
    listed = set(re.findall(r"^(\w+)", drawn, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "src" / "elmesh").glob("*/__init__.py")}
    assert packages <= listed
