"""``elmesh network create``, ``csr`` and ``sign`` make files that agents accept, and overwrite nothing."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from elmesh.cli import main

pytest.importorskip("cryptography", reason="keys and certificates need cryptography, of elmesh[network]")

from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.schema import make_schema
from helpers.commands import Command

FOUR = ["--agents", "north,south,east,west", "--listen", "127.0.0.1:7451"]
REGRESSION = ["--kind", "regression", "--target-range", "0,1"]
TWO = ["--agents", "north,south", "--listen", "north.example.org:7451,192.0.2.7:7451", "--fewest-sites", "2"]
FILES = ["agent.toml", "ca.pem", "certificate.pem", "key.pem", "network.toml"]
NETWORK = Command("network")
run, worked, refused = NETWORK.run, NETWORK.worked, NETWORK.refused


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A made-up table."""
    rng = np.random.default_rng(0)
    n = 120
    path = tmp_path_factory.mktemp("table") / "made-up.csv"
    pd.DataFrame(
        {
            "patient": [f"p{i}" for i in range(n)],
            "age": np.r_[18.3, 91.2, rng.uniform(20, 90, n - 2)],
            "ward": np.resize(["a", "b", None], n),
            "outcome": np.resize(["ill", "well"], n),
            "days": np.r_[3.4, 117.9, rng.uniform(4, 117, n - 2)],
            "digit": np.resize(np.arange(10), n),
        }
    ).to_csv(path, index=False)
    return path


# create


def test_every_agent_gets_a_complete_folder(tmp_path):
    net = tmp_path / "net"
    worked("create", net, *FOUR)
    assert sorted(path.name for path in net.iterdir()) == ["ca", "east", "network.toml", "north", "south", "west"]
    assert sorted(path.name for path in (net / "ca").iterdir()) == ["ca.key", "ca.pem", "issued"]
    config = NetworkConfig.read(net / "network.toml")
    assert [(agent.name, agent.address) for agent in config.agents] == [
        ("east", "127.0.0.1:7453"),
        ("north", "127.0.0.1:7451"),
        ("south", "127.0.0.1:7452"),
        ("west", "127.0.0.1:7454"),
    ]
    assert config.neighbors("north") == ["south", "west"]
    for name in config.agent_names:
        assert sorted(path.name for path in (net / name).iterdir()) == FILES
        # Handed over, it is read elsewhere.
        (net / name).rename(tmp_path / name)
        found = Identity.read(tmp_path / name / "agent.toml")
        assert (found.name, found.config.digest) == (name, config.digest)
        assert 364 < found.days_left() <= 365
        assert set(found.hosts) == {"127.0.0.1", "localhost", "::1"}
    keys = {(tmp_path / name / "key.pem").read_bytes() for name in config.agent_names}
    assert len(keys) == 4


def test_other_users_can_open_neither_folders_nor_keys(tmp_path):
    before = os.umask(0)
    try:
        worked("create", tmp_path / "a" / "net", *FOUR)
    finally:
        os.umask(before)
    net = tmp_path / "a" / "net"
    for folder in (net, *(path for path in net.iterdir() if path.is_dir())):
        assert mode(folder) == 0o700
    for key in (net / "ca" / "ca.key", *net.glob("*/key.pem")):
        assert mode(key) == 0o600


def test_only_key_files_contain_keys(tmp_path):
    worked("create", tmp_path / "net", *FOUR)
    holding = {name for name, data in tree(tmp_path / "net").items() if b"PRIVATE" in data}
    assert holding == {"ca/ca.key", *(f"{name}/key.pem" for name in ("north", "south", "east", "west"))}


def test_each_agent_can_have_its_own_address(tmp_path):
    worked("create", tmp_path / "net", *TWO, "--graph", "path")
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert [agent.address for agent in config.agents] == ["north.example.org:7451", "192.0.2.7:7451"]
    hosts = [Identity.read(tmp_path / "net" / name / "agent.toml").hosts for name in config.agent_names]
    assert hosts == [["north.example.org"], ["192.0.2.7"]]


def test_options_reach_the_network_file(tmp_path):
    options = ["--rounds", 40, "--hidden", 50, "--rank", 4, "--seed", 7, "--name", "trial", "--graph", "star"]
    worked("create", tmp_path / "net", *FOUR, *options, "--days", 20)
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert (config.rounds, config.n_hidden, config.rank, config.seed, config.name) == (40, 50, 4, 7, "trial")
    assert config.neighbors("north") == ["east", "south", "west"]
    assert (config.exchange, config.statistics, config.kind) == ("sums", False, "classification")
    assert 19 < Identity.read(tmp_path / "net" / "east" / "agent.toml").days_left() <= 20


def test_by_default_agents_exchange_masked_sums_and_all_parameters_are_automatic(tmp_path):
    worked("create", tmp_path / "net", *FOUR)
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert (config.exchange, config.rank, config.n_hidden, config.fewest_sites) == ("sums", 0, 200, 3)
    assert config.parameters == {"common": "auto", "private": "auto", "rows_per_feature": 20.0}
    assert config.solver == "mesh-elm"


@pytest.mark.parametrize("quiet", [(), ("--quiet",), ("--quiet", "--json")])
def test_the_exchange_of_bases_is_by_choice_and_with_a_caution_whatever_is_asked_for(tmp_path, quiet):
    result = worked("create", tmp_path / "net", *FOUR, "--exchange", "basis", *quiet)
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert (config.exchange, config.solver, config.rank, config.n_hidden) == ("basis", "dmtl-elm", 6, 300)
    assert config.parameters == {"mu1": 1.0, "mu2": 1.0, "rho": 10.0}
    assert "a neighbour that tries can reconstruct rows and labels" in result.stderr


def test_the_network_is_named_after_the_folder(tmp_path):
    worked("create", tmp_path / "My Trial", *TWO)
    assert NetworkConfig.read(tmp_path / "My Trial" / "network.toml").name == "my-trial"


def test_columns_come_from_an_example_table_with_a_warning_that_they_are_public(tmp_path, table):
    drop = [part for name in ("patient", "days", "digit") for part in ("--drop", name)]
    result = worked("create", tmp_path / "net", *FOUR, "--like", table, "--target", "outcome", *drop)
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert config.columns == (
        InputColumn("age", range=(21.0, 88.0)),
        InputColumn("ward", categories=("a", "b"), missing=True),
    )
    assert (config.kind, config.target_range) == ("classification", None)
    for text in (result.stderr, (tmp_path / "net" / "network.toml").read_text().replace("\n# ", " ")):
        assert "taken from made-up.csv: whoever has this file knows these facts about that table" in text
    assert make_schema(config, "(file)", ["outcome"], whole_labels=False).feature_names == [
        "age",
        "ward = a",
        "ward = b",
        "ward is missing",
    ]


@pytest.mark.parametrize(
    ("target", "classes"), [("outcome", ("ill", "well")), ("digit", tuple(range(10)))], ids=["text", "whole numbers"]
)
def test_the_classes_of_the_example_are_declared_if_agents_exchange_sums(tmp_path, table, target, classes):
    words = [*FOUR, "--like", table, "--target", target, "--kind", "classification", "--drop", "patient"]
    result = worked("create", tmp_path / "sums", *words)
    config = NetworkConfig.read(tmp_path / "sums" / "network.toml")
    assert config.classes == classes
    assert "and the classes," in result.stderr
    assert config.model_solver().grouped_features
    worked("create", tmp_path / "basis", *words, "--exchange", "basis")
    assert NetworkConfig.read(tmp_path / "basis" / "network.toml").classes is None


def test_an_example_of_a_regression_has_the_range_of_its_target(tmp_path, table):
    drop = [part for name in ("patient", "outcome", "digit") for part in ("--drop", name)]
    result = worked("create", tmp_path / "net", *FOUR, "--like", table, "--target", "days", *drop)
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert (config.kind, config.target_range) == ("regression", (10.0, 120.0))
    assert "the range of the target" in result.stderr


def test_the_default_rank_suffices_for_the_classes_of_the_example(tmp_path, table):
    like = ["--like", table, "--target", "digit", "--kind", "classification", "--drop", "patient"]
    like += ["--exchange", "basis"]
    worked("create", tmp_path / "a", *FOUR, *like)
    assert NetworkConfig.read(tmp_path / "a" / "network.toml").rank == 9
    worked("create", tmp_path / "b", *FOUR, *like, "--rank", 3)
    assert NetworkConfig.read(tmp_path / "b" / "network.toml").rank == 3


def test_a_regression_without_an_example_needs_a_range(tmp_path):
    worked("create", tmp_path / "net", *FOUR, "--kind", "regression", "--target-range", "-5,10")
    assert NetworkConfig.read(tmp_path / "net" / "network.toml").target_range == (-5.0, 10.0)


def test_a_note_asks_to_add_columns_to_a_network_without_them(tmp_path):
    result = worked("create", tmp_path / "net", *FOUR)
    assert "names no feature columns yet" in result.stderr


def test_nothing_is_overwritten_without_force(tmp_path):
    worked("create", tmp_path / "net", *FOUR)
    (tmp_path / "net" / "north" / "state").mkdir()
    (tmp_path / "net" / "north" / "state" / "journal").write_text("kept")
    before = tree(tmp_path / "net")
    sentence = refused("create", tmp_path / "net", *FOUR)
    assert re.search(r"network.toml exists; choose another place, or give --force", sentence)
    assert tree(tmp_path / "net") == before
    worked("create", tmp_path / "net", *FOUR, "--force")
    after = tree(tmp_path / "net")
    # The record of what the former authority has signed stays, and the new one has its own certificates.
    record = {name for name in before if name.startswith("ca/issued/")}
    assert {name for name in after if not name.startswith("ca/issued/")} == set(before) - record
    kept = {name for name in before if after[name] == before[name]}
    assert kept == {"north/state/journal", *record, *(name for name in before if name.endswith(".toml"))}
    for name in ("north", "south", "east", "west"):
        Identity.read(tmp_path / "net" / name / "agent.toml")


def test_one_existing_file_prevents_all_changes(tmp_path):
    (tmp_path / "net" / "west").mkdir(parents=True)
    (tmp_path / "net" / "west" / "key.pem").write_text("mine")
    assert "key.pem exists" in refused("create", tmp_path / "net", *FOUR)
    assert tree(tmp_path / "net") == {"west/key.pem": b"mine"}


def test_json_output_is_one_object_and_quiet_prints_nothing(tmp_path, table):
    result = worked("create", tmp_path / "net", *FOUR, "--json", "--quiet")
    data = json.loads(result.stdout)
    assert result.stderr == ""
    config = NetworkConfig.read(tmp_path / "net" / "network.toml")
    assert (data["command"], data["network"], data["digest"]) == ("network create", "net", config.digest.hex())
    assert data["authority"] == str(tmp_path / "net" / "ca")
    assert data["agents"][1] == {
        "name": "north",
        "address": "127.0.0.1:7451",
        "neighbors": ["south", "west"],
        "folder": str(tmp_path / "net" / "north"),
        "invitation": None,
    }
    assert any("names no feature columns" in note for note in data["notes"])
    assert worked("create", tmp_path / "other", *FOUR, "--quiet").output == ""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--agents", "north,North", "--listen", "h:1"], "name of an agent is 'North'; expected 1 to 32"),
        (["--agents", "north,north", "--listen", "h:1"], 'The agent "north" occurs twice'),
        (["--agents", "north,", "--listen", "h:1"], "name of an agent is ''"),
        (["--agents", "ca,north,south", "--listen", "h:1"], "No agent can be named ca"),
        (
            ["--agents", "a,b", "--listen", "h:1"],
            "each can subtract its own part of a sum and has the other's.*fewest_sites",
        ),
        (["--agents", "a", "--listen", "h:1"], "There is 1 agent .a., the total is its own part"),
        ([*FOUR, "--fewest-sites", "5"], "masked sums are over at least 5 agents"),
        (["--agents", "a,b,c", "--listen", "h:1,h:2"], "--listen has 2 addresses for 3 agents"),
        (["--agents", "a,b", "--listen", "h:1,h:1"], 'The address "h:1" occurs twice'),
        (["--agents", "a,b", "--listen", "h"], "An address of --listen is 'h'; expected a host and a port"),
        (["--agents", "a,b", "--listen", "0.0.0.0:1"], "to which nothing can connect"),
        (
            ["--agents", "a,b", "--listen", "h:65535"],
            "leaves too few ports for 2 agents, one each; start lower than 65535",
        ),
        ([*FOUR, "--graph", "web"], "The graph 'web' is unknown"),
        ([*FOUR, "--kind", "ranking"], '--kind must be classification or regression, not "ranking"'),
        ([*FOUR, "--kind", "regression"], "A regression needs the range of its target"),
        ([*FOUR, "--target-range", "0,1"], "is for a regression"),
        ([*FOUR, "--kind", "regression", "--target-range", "1"], "--target-range must be two numbers such as 0,100"),
        ([*FOUR, "--kind", "regression", "--target-range", "2,1"], "expected two finite numbers"),
        ([*FOUR, "--exchange", "basis", "--rank", "auto"], 'rank must be a number.*exchange = "sums"'),
        ([*FOUR, "--rank", "many"], '"model.rank" is \'many\'; expected an integer from 0 to 100000 or "auto"'),
        ([*FOUR, "--exchange", "basis", "--rank", "0"], "rank must be "),
        ([*FOUR, *REGRESSION, "--epsilon", "0"], '"privacy.epsilon" is 0.0; expected a number above 0'),
        ([*FOUR, *REGRESSION, "--epsilon", "1", "--max-colluders", "3"], "max_colluders is 3, and there are 4 sites"),
        ([*FOUR, *REGRESSION, "--epsilon", "1", "--exchange", "basis"], "Differential privacy is for masked sums"),
        ([*FOUR, *REGRESSION, "--delta", "1e-5"], "delta in \\[privacy\\] has no effect without epsilon"),
        ([*FOUR, "--hidden", "0"], '"model.n_hidden" is 0'),
        ([*FOUR, "--rounds", "0"], '"rounds" is 0'),
        ([*FOUR, "--seed", "-1"], '"model.seed" is -1'),
        ([*FOUR, "--exchange", "all"], "\"exchange\" is 'all'; expected one of basis, sums"),
        ([*FOUR, "--name", "My Net"], "network's name is 'My Net'"),
        ([*FOUR, "--target", "y"], "--target is about the table of --like"),
        ([*FOUR, "--drop", "y"], "--drop is about the table of --like"),
        ([*FOUR, "--like", "TABLE"], "--like needs --target"),
        ([*FOUR, "--like", "nowhere.csv", "--target", "y"], "There is no file nowhere.csv"),
        ([*FOUR, "--like", "TABLE", "--target", "y"], 'There is no column "y" in the table'),
        ([*FOUR, "--like", "TABLE", "--target", "days"], 'Column "patient" is text with .*--drop "patient"'),
        ([*FOUR, "--like", "TABLE", "--target", "days", "--target-range", "0,1"], "--target-range is for a network"),
    ],
)
def test_bad_input_gives_one_sentence_and_writes_nothing(tmp_path, table, args, words):
    args = [str(table) if arg == "TABLE" else arg for arg in args]
    assert re.search(words, refused("create", tmp_path / "net", *args))
    assert not (tmp_path / "net").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "net").write_text("mine")
    assert "net" in refused("create", tmp_path / "net", *FOUR)
    assert (tmp_path / "net").read_text() == "mine"


# csr and sign


def test_with_csr_sites_make_their_keys_and_the_authority_signs(tmp_path):
    net = tmp_path / "net"
    result = worked("create", net, *TWO, "--csr")
    assert sorted(path.name for path in net.iterdir()) == ["ca", "invitations", "network.toml"]
    assert "north.toml: send it to north. There: elmesh network join north.toml" in result.stdout
    # At the site, with the file that was sent there.
    result = worked("csr", net / "network.toml", "--agent", "north", "--out", tmp_path / "site")
    site = tmp_path / "site"
    assert sorted(path.name for path in site.iterdir()) == ["agent.toml", "key.pem", "network.toml", "north.csr"]
    assert (mode(site), mode(site / "key.pem")) == (0o700, 0o600)
    assert (site / "network.toml").read_bytes() == (net / "network.toml").read_bytes()
    assert b"PRIVATE" not in (site / "north.csr").read_bytes()
    for words in ("north.csr", "certificate.pem", "ca.pem", "key.pem"):
        assert str(site / words) in result.stdout
    # At the authority.
    worked("create", tmp_path / "other", *TWO, "--name", "other")
    ca = tmp_path / "other" / "ca"
    result = worked("sign", ca, site / "north.csr", "--network", net / "network.toml", "--out", tmp_path / "n.pem")
    assert "is the certificate of north, valid for 365 days" in result.stdout
    # And back.
    (site / "certificate.pem").write_bytes((tmp_path / "n.pem").read_bytes())
    (site / "ca.pem").write_bytes((ca / "ca.pem").read_bytes())
    found = Identity.read(site / "agent.toml")
    assert (found.name, found.hosts) == ("north", ["north.example.org"])


@pytest.fixture
def asked(tmp_path) -> Path:
    """A network with an authority, and a request beside it."""
    worked("create", tmp_path / "net", *TWO, "--quiet")
    worked("csr", tmp_path / "net" / "network.toml", "--agent", "south", "--out", tmp_path / "site", "--quiet")
    return tmp_path


def test_a_site_makes_its_key_once(asked):
    before = tree(asked / "site")
    args = ["csr", asked / "net" / "network.toml", "--agent", "south", "--out", asked / "site"]
    assert "agent.toml exists; choose another place, or give --force" in refused(*args)
    assert tree(asked / "site") == before
    worked(*args, "--force")
    assert tree(asked / "site")["key.pem"] != before["key.pem"]


def test_the_network_file_may_already_be_in_the_agents_folder(asked):
    folder = asked / "other"
    folder.mkdir()
    (folder / "network.toml").write_bytes((asked / "net" / "network.toml").read_bytes())
    worked("csr", folder / "network.toml", "--agent", "north", "--out", folder)
    assert (folder / "north.csr").exists()
    # But another network's is in the way.
    (asked / "third").mkdir()
    (asked / "third" / "network.toml").write_text("other")
    sentence = refused("csr", folder / "network.toml", "--agent", "north", "--out", asked / "third")
    assert "network.toml exists" in sentence
    assert [path.name for path in (asked / "third").iterdir()] == ["network.toml"]


def test_csr_and_sign_report_their_files_as_json(asked):
    args = ["csr", asked / "net" / "network.toml", "--agent", "north", "--out", asked / "n", "--json"]
    data = json.loads(worked(*args).stdout)
    assert (data["command"], data["agent"], data["request"]) == ("network csr", "north", str(asked / "n" / "north.csr"))
    args = ["sign", asked / "net" / "ca", data["request"], "--network", asked / "net" / "network.toml", "--json"]
    data = json.loads(worked(*args).stdout)
    assert (data["agent"], data["certificate"]) == ("north", str(asked / "n" / "north.pem"))
    assert Path(data["certificate"]).read_text().startswith("-----BEGIN CERTIFICATE")


def test_a_certificate_is_valid_for_the_given_days_and_replaces_no_other(asked):
    args = ["sign", asked / "net" / "ca", asked / "site" / "south.csr", "--network", asked / "net" / "network.toml"]
    target = asked / "site" / "certificate.pem"
    worked(*args, "--days", 9, "--out", target)
    (asked / "site" / "ca.pem").write_bytes((asked / "net" / "ca" / "ca.pem").read_bytes())
    assert 8 < Identity.read(asked / "site" / "agent.toml").days_left() <= 9
    before = target.read_bytes()
    assert "certificate.pem exists" in refused(*args, "--out", target)
    assert target.read_bytes() == before
    worked(*args, "--out", target, "--force")
    assert 364 < Identity.read(asked / "site" / "agent.toml").days_left() <= 365


def test_only_requests_of_agents_of_the_network_are_signed(asked):
    other = ["--agents", "here,there,elsewhere", "--listen", "h:1", "--csr", "--quiet"]
    worked("create", asked / "elsewhere", *other)
    sentence = refused(
        "sign", asked / "net" / "ca", asked / "site" / "south.csr", "--network", asked / "elsewhere" / "network.toml"
    )
    assert (
        "south.csr: There is no agent 'south' in the network elsewhere; there are 'elsewhere', 'here', 'there'"
        in sentence
    )
    assert not (asked / "site" / "south.pem").exists()


def test_the_hosts_of_a_certificate_come_from_the_network_file(asked):
    moved = ["--agents", "north,south,west", "--listen", "a.org:1,b.org:1,c.org:1"]
    worked("create", asked / "moved", *moved, "--csr", "--quiet")
    worked("sign", asked / "net" / "ca", asked / "site" / "south.csr", "--network", asked / "moved" / "network.toml")
    (asked / "site" / "certificate.pem").write_bytes((asked / "site" / "south.pem").read_bytes())
    (asked / "site" / "ca.pem").write_bytes((asked / "net" / "ca" / "ca.pem").read_bytes())
    assert Identity.read(asked / "site" / "agent.toml").hosts == ["b.org"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["csr", "net/network.toml", "--agent", "nord", "--out", "x"], "no agent 'nord' in the network net"),
        (["csr", "nowhere.toml", "--agent", "north", "--out", "x"], "There is no network file nowhere.toml"),
        (["csr", "net/ca/ca.pem", "--agent", "north", "--out", "x"], "ca.pem: This is not TOML"),
        (["sign", "net", "site/south.csr", "--network", "net/network.toml"], "net has no file ca.key"),
        (["sign", "net/ca", "nowhere.csr", "--network", "net/network.toml"], "There is no request for a certificate"),
        (["sign", "net/ca", "net/network.toml", "--network", "net/network.toml"], "This is not a request"),
        (["sign", "net/ca", "site/south.csr", "--network", "nowhere.toml"], "There is no network file"),
    ],
)
def test_bad_input_at_a_site_gives_one_sentence(asked, monkeypatch, args, words):
    monkeypatch.chdir(asked)
    before = tree(asked)
    assert re.search(words, refused(*args))
    assert tree(asked) == before


# The group


@pytest.mark.parametrize("command", ["create", "csr", "sign"])
def test_help_has_an_example(command):
    assert f"elmesh network {command}" in worked(command, "--help").stdout


def test_the_group_alone_lists_its_commands(monkeypatch, capsys):
    for command in ("create", "csr", "sign"):
        assert command in worked().stdout
    monkeypatch.setattr(sys, "argv", ["elmesh", "network"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().err == ""


def test_columns_of_dates_are_left_out_with_a_note(tmp_path):
    table = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=30).strftime("%Y-%m-%d"), "x": range(30)})
    table.assign(y=[k % 3 + 0.5 for k in range(30)]).to_csv(tmp_path / "like.csv", index=False)
    words = ("create", tmp_path / "net", "--agents", "a,b,c", "--listen", "127.0.0.1:7451")
    result = run(*words, "--like", tmp_path / "like.csv", "--target", "y")
    assert result.exit_code == 0, result.stderr
    assert 'not dates: "when"' in result.stderr
