"""Network files round-trip through TOML, their digest covers their content, and invalid files are refused."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tomllib
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import DMTLELM, FODMTLELM, MeshELM
from elmesh.comm.requests import NeighborSum
from elmesh.data.features import weight_scale
from elmesh.errors import ElmeshError
from elmesh.solvers.base import RoundReport
from helpers.examples import examples
from helpers.peers import own_tasks, run_peers

pytest.importorskip("msgspec", reason="network files need msgspec, of elmesh[network]")

from msgspec.structs import replace

from elmesh.agent.limits import max_message_bytes
from elmesh.comm.network.wire import HEADER_BYTES
from elmesh.netconfig.columns import InputColumn
from elmesh.netconfig.config import AgentEntry, NetworkConfig
from elmesh.netconfig.config_builder import DataSpec, build_config, round_outwards
from elmesh.netconfig.names import parse_address
from elmesh.netconfig.schema import make_schema

NUMBERS = {"mu1": 1.0, "mu2": 1.0, "rho": 1.0}
AGE = InputColumn("age", range=(0.0, 120.0), missing=True)
SEX = InputColumn("sex", categories=("f", "m"))


def network(**changes: Any) -> NetworkConfig:
    """A ring of four, with some fields changed."""
    names = ["north", "south", "east", "west"]
    fields: dict[str, Any] = {
        "name": "net",
        "agents": tuple(AgentEntry(name, f"127.0.0.1:{7451 + i}") for i, name in enumerate(names)),
        "edges": (("north", "south"), ("south", "east"), ("east", "west"), ("west", "north")),
        "kind": "classification",
        "columns": (AGE, SEX),
        "exchange": "basis",
        "solver": "mesh-elm" if changes.get("exchange") == "sums" else "dmtl-elm",
        "rank": 6,
        "parameters": NUMBERS,
    }
    return NetworkConfig(**(fields | changes))


names = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20).filter(
    lambda text: text == text.strip()
)
hosts = st.one_of(
    st.ip_addresses(v=4).filter(lambda ip: not ip.is_unspecified).map(str),
    st.ip_addresses(v=6).filter(lambda ip: not ip.is_unspecified).map(lambda ip: f"[{ip}]"),
    st.from_regex(r"[a-z][a-z0-9]{0,9}(\.[a-z]{2,5}){0,3}", fullmatch=True),
)
ends = st.lists(
    st.floats(-1e100, 1e100, allow_subnormal=False), min_size=2, max_size=2, unique_by=lambda x: round(x, 3)
).map(sorted)


@st.composite
def columns(draw) -> tuple[InputColumn, ...]:
    found: list[InputColumn] = []
    for name in draw(st.lists(texts, max_size=4, unique=True)):
        missing = draw(st.booleans())
        if draw(st.booleans()):
            found.append(InputColumn(name, range=tuple(draw(ends)), missing=missing))
        else:
            known = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
            found.append(InputColumn(name, categories=tuple(known), missing=missing))
    return tuple(found)


@st.composite
def configs(draw) -> NetworkConfig:
    agents = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    ports = draw(st.lists(st.integers(1, 65535), min_size=len(agents), max_size=len(agents), unique=True))
    tree = [(agents[draw(st.integers(0, i - 1))], agents[i]) for i in range(1, len(agents))]
    pairs = {tuple(sorted(draw(st.permutations(agents))[:2])) for _ in range(draw(st.integers(0, 3)))}
    edges = {tuple(sorted(edge)) for edge in tree} | {pair for pair in pairs if len(pair) == 2}
    kind = draw(st.sampled_from(["classification", "regression"]))
    exchange = draw(st.sampled_from(["basis", "sums"]))
    positive = st.floats(1e-6, 1e6)
    parameters = {name: draw(positive) for name in NUMBERS} | draw(
        st.sampled_from([{}, {"tau": "20 + d"}, {"zeta": 0.5, "gamma": "paper", "proximal": "standard"}])
    )
    if exchange == "sums":
        parameters = {"mu1": draw(positive), "tol": draw(positive), "certify": draw(st.booleans())}
        parameters |= draw(st.sampled_from([{}, {"message_bits": 16}, {"common": "auto", "private": "auto"}]))
    hidden = draw(st.integers(1, 10**5))
    return NetworkConfig(
        name=draw(names),
        agents=tuple(AgentEntry(name, f"{draw(hosts)}:{port}") for name, port in zip(agents, ports, strict=True)),
        edges=tuple(edges),
        kind=kind,
        columns=draw(columns()),
        target_range=tuple(draw(ends)) if kind == "regression" else None,
        exchange=exchange,
        solver="dmtl-elm" if exchange == "basis" else "mesh-elm",
        fewest_sites=draw(st.integers(1, min(3, len(agents)))),
        statistics=draw(st.booleans()),
        rounds=draw(st.integers(1, 10**7)),
        n_hidden=hidden,
        activation=draw(st.sampled_from(["sigmoid", "tanh", "relu", "sine", "none"])),
        weight_scale=draw(st.just("auto") | positive),
        seed=draw(st.integers(0, 2**63 - 1)),
        fit_intercept=draw(st.booleans()),
        rank=draw(st.integers(1, hidden)),
        parameters=parameters,
        most_rows=draw(st.integers(1, 10**12)),
    )


# The file


@pytest.mark.thorough
@given(configs())
@examples(60)
def test_a_written_file_is_read_back_unchanged(made):
    again = NetworkConfig.parse(made.to_toml("A remark of some length. " * 9), "a copy")
    assert again == made
    assert again.digest == made.digest
    assert len(made.digest) == 32


@pytest.mark.thorough
@given(configs(), st.randoms(use_true_random=False))
@examples(30)
def test_comments_line_ends_and_the_order_of_sections_do_not_change_the_digest(made, random):
    text = "".join(f"{line}\r\n" for line in made.to_toml().splitlines() if not line.startswith("#"))
    assert NetworkConfig.parse(f"# another comment\r\n{text}", "a copy").digest == made.digest
    agents, edges = list(made.agents), [edge[:: random.choice([1, -1])] for edge in made.edges]
    random.shuffle(agents)
    random.shuffle(edges)
    assert replace(made, agents=tuple(agents), edges=tuple(edges)).digest == made.digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"edges": (("north", "south"), ("south", "east"), ("east", "west"))},
        {"columns": (SEX, AGE)},
        {"columns": (AGE,)},
        {"statistics": True},
        {"rounds": 301},
        {"n_hidden": 301},
        {"activation": "tanh"},
        {"weight_scale": 0.5},
        {"seed": 1},
        {"fit_intercept": False},
        {"rank": 5},
        {"solver": "fo-dmtl-elm"},
        {"parameters": {**NUMBERS, "rho": 2.0}},
        {"most_rows": 999},
        {"routers": ("router.example.org:7447",)},
        {"kind": "regression", "target_range": (0.0, 1.0)},
        {"agents": (*network().agents[:3], AgentEntry("west", "127.0.0.1:7999"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_change_changes_the_digest(change):
    assert network(**change).digest != network().digest


def test_the_exchange_changes_the_digest():
    sums = network(exchange="sums", parameters={"mu1": 1.0, "mu2": 1.0})
    assert sums.digest != network().digest
    assert replace(sums, fewest_sites=4).digest != sums.digest


def test_the_digest_of_a_file_is_the_same_on_every_machine_and_in_version_0_4():
    assert network().digest.hex() == "d30dce07bb6c06c0857f091d95c38c5c81e9abfb3e50bcd4ec056a44d476083e"
    assert NetworkConfig.parse(OLD_FILE, "old").digest.hex() == (
        "38c44fb494747234dff4d5d3acb86c8807f990df766184bcee21b0f730f54915"
    )


def test_integers_and_floats_of_equal_value_have_the_same_digest():
    assert network(parameters={"mu1": 1, "mu2": 1, "rho": 1}).digest == network().digest


def test_every_field_of_the_file_has_a_comment():
    text = network(kind="regression", target_range=(0, 1), parameters={**NUMBERS, "zeta": 2.0}).to_toml()
    for table in re.split(r"\n(?=\[\[)", text)[:1]:
        lines = table.splitlines()
        for i, line in enumerate(lines):
            if re.match(r"\w+ = ", line):
                assert "  # " in line or lines[i - 1].startswith("# "), line
    assert "rho = 1.0  # penalty on the difference between neighbours" in text


def test_fields_with_a_default_may_be_omitted():
    agents = [f'[[agents]]\nname = "{name}"\naddress = "localhost:{port}"\n' for port, name in enumerate("abc", 7451)]
    text = 'name = "net"\nkind = "classification"\n' + "".join(agents) + '[graph]\nedges = [["a", "b"], ["b", "c"]]\n'
    made = NetworkConfig.parse(text, "small")
    assert (made.exchange, made.fewest_sites, made.statistics, made.most_rows) == ("sums", 3, False, 10**6)
    assert (made.rounds, made.rank, made.solver, made.parameters) == (300, "auto", "mesh-elm", {})
    assert made.neighbors("b") == ["a", "c"]


def test_a_file_is_read_from_disk(tmp_path):
    (tmp_path / "network.toml").write_text(network().to_toml(), encoding="utf-8")
    assert NetworkConfig.read(tmp_path / "network.toml") == network()


OLD_FILE = """\
# A comment.
name = "net"
kind = "regression"
rounds = 300
exchange = "basis"
statistics = false
most_rows = 1000000
routers = ["relay.example.org:7447"]

[model]
n_hidden = 300
activation = "sigmoid"
weight_scale = 0.5
seed = 0
fit_intercept = true
rank = 6
solver = "dmtl-elm"

[model.parameters]
mu1 = 1.0
mu2 = 1.0
rho = 10.0

[target]
range = [0.0, 100.0]

[[agents]]
name = "east"
address = "127.0.0.1:7453"
[[agents]]
name = "north"
address = "127.0.0.1:7451"
[[agents]]
name = "south"
address = "127.0.0.1:7452"

[graph]
edges = [
  ["east", "south"],
  ["north", "south"],
]

[[columns]]
name = "age"
range = [0.0, 120.0]
missing = true
[[columns]]
name = "sex"
categories = ["f", "m"]
missing = false
"""


def test_a_file_of_version_0_4_is_read():
    made = NetworkConfig.parse(OLD_FILE, "old")
    assert made == NetworkConfig(
        name="net",
        kind="regression",
        exchange="basis",
        solver="dmtl-elm",
        rank=6,
        routers=("relay.example.org:7447",),
        weight_scale=0.5,
        parameters={**NUMBERS, "rho": 10.0},
        target_range=(0.0, 100.0),
        agents=tuple(AgentEntry(name, f"127.0.0.1:{7451 + i}") for i, name in enumerate(["north", "south", "east"])),
        edges=(("east", "south"), ("north", "south")),
        columns=(AGE, SEX),
    )


# Errors

SMALL = network(edges=(("north", "south"), ("south", "east"), ("east", "west"))).to_toml()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "rounds = 300",
            "round = 300",
            '"round" is unknown; did you mean "rounds". The known ones are name, kind, rounds',
        ),
        ("n_hidden = 300", "hidden = 300", '"model.hidden" is unknown.*n_hidden, activation'),
        ('name = "age"', 'nam = "age"', r'"columns\[0\].nam" is unknown; did you mean "name"'),
        ("edges = [", "edge = [", '"graph.edge" is unknown'),
        ('address = "127.0.0.1:7453"', 'adress = "127.0.0.1:7453"', r'"agents\[0\].adress" is unknown'),
        ("[model]", "[target]\nlow = 1\n[model]", '"target.low" is unknown; the known ones are range'),
        ("[model]", "[extra]\n[model]", '"extra" is unknown'),
        ('name = "net"', "", '"name" is missing; expected a string'),
        ('kind = "classification"', "", '"kind" is missing; expected one of classification, regression'),
        (
            'kind = "classification"',
            'kind = "ranking"',
            "\"kind\" is 'ranking'; expected one of classification, regression",
        ),
        ('kind = "classification"', "kind = 3", '"kind" is 3; expected one of classification, regression'),
        ('name = "net"', 'name = "Net"', "network's name is 'Net'"),
        ('exchange = "basis"', 'exchange = "all"', "\"exchange\" is 'all'; expected one of basis, sums"),
        ("statistics = false", 'statistics = "no"', "\"statistics\" is 'no'; expected true or false"),
        ("rounds = 300", "rounds = 0", '"rounds" is 0; expected an integer from 1 to 10000000'),
        ("rounds = 300", "rounds = true", '"rounds" is true'),
        ("rounds = 300", "rounds = 300.0", '"rounds" is 300.0'),
        ("rounds = 300", "rounds = 99999999", '"rounds" is 99999999; expected an integer from 1 to 10000000'),
        ("rounds = 300", f"rounds = {'9' * 50}", r'"rounds" is 9+\.\.\.9+; expected an integer'),
        ("rounds = 300", f"rounds = {'9' * 5000}", "This is not TOML"),
        ("rounds = 300", "rounds = 2024-01-01", '"rounds" is datetime'),
        ("most_rows = 1000000", "most_rows = -1", '"most_rows" is -1'),
        ("routers = []", 'routers = ["nowhere"]', "The address of a router is 'nowhere'"),
        ("routers = []", "routers = [3]", r'"routers\[0\]" is 3; expected a string'),
        ("routers = []", 'routers = ["127.0.0.1:7451"]', 'address "127.0.0.1:7451" occurs twice'),
        ("n_hidden = 300", "n_hidden = 1000000", '"model.n_hidden" is 1000000'),
        ('activation = "sigmoid"', 'activation = "step"', "activation must be one of sigmoid, .*; got 'step'"),
        (
            'weight_scale = "auto"',
            "weight_scale = -1",
            '"model.weight_scale" is -1; expected a number above 0 and at most 1000000 or "auto"',
        ),
        ('weight_scale = "auto"', "weight_scale = inf", '"model.weight_scale" is inf'),
        ('weight_scale = "auto"', "weight_scale = nan", '"model.weight_scale" is nan'),
        ('weight_scale = "auto"', "weight_scale = 1e9", '"model.weight_scale" is 1000000000.0'),
        ("seed = 0", "seed = -1", '"model.seed" is -1'),
        ("fit_intercept = true", "fit_intercept = 1", '"model.fit_intercept" is 1'),
        ("rank = 6", "rank = 301", "rank is 301; expected an integer from 0 to 300"),
        ("rank = 6", 'rank = "many"', '"model.rank" is \'many\'; expected an integer from 0 to 100000 or "auto"'),
        (
            'solver = "dmtl-elm"',
            'solver = "local-elm"',
            "solver is 'local-elm'; a network can use one of .*dmtl-elm, fo-dmtl-elm, mesh-elm",
        ),
        ("rho = 1.0", "roh = 1.0", '"roh" is not a parameter of dmtl-elm; did you mean "rho"'),
        ("rho = 1.0", "rho = -1.0", "rho must be a finite number, more than zero"),
        ("rho = 1.0", "rho = nan", "rho must be a finite number"),
        (
            "rho = 1.0",
            "rho = [1.0, 2.0]",
            "rho in \\[model.parameters\\] is \\[1.0, 2.0\\]; expected a number or a string",
        ),
        ("rho = 1.0", "rho = 1.0\nrank = 3", "rank is not a field of .*it is set by rank in \\[model\\]"),
        ("rho = 1.0", 'rho = 1.0\ngraph = "ring"', "graph is not a field of"),
        ("rho = 1.0", "rho = 1.0\nmax_iter = 3", "max_iter is not a field of .*it is set by rounds"),
        ("rho = 1.0", "rho = 1.0\nmax_bytes = 3", "max_bytes is not a field of"),
        ("rho = 1.0", 'rho = 1.0\nruntime = "mpi"', '"runtime" is not a parameter of dmtl-elm'),
        ("rho = 1.0", 'rho = 1.0\nmethod = "sgd"', "method is 'sgd'; choose mesh-elm or dmtl-elm"),
        ('name = "east"', 'name = "east coast"', "name of an agent is 'east coast'; expected 1 to 32"),
        ('name = "east"', 'name = "north"', 'The agent "north" occurs twice'),
        ("127.0.0.1:7453", "127.0.0.1:7451", 'The address "127.0.0.1:7451" occurs twice'),
        ("127.0.0.1:7453", "0.0.0.0:7451", "address of agent east is 0.0.0.0:7451, to which nothing can connect"),
        ("127.0.0.1:7453", "127.0.0.1", "The address of agent east is '127.0.0.1'; expected a host and a port"),
        (
            '["north", "south"]',
            '["north", "sooth"]',
            "contains 'sooth', which is not an agent; there are 'east', 'north'",
        ),
        ('["north", "south"]', '["north", "north"]', "connects an agent to itself"),
        ('["north", "south"]', '["north", "south"], ["south", "north"]', "occurs twice"),
        (
            '["north", "south"]',
            '["north", "south", "east"]',
            r'"graph.edges\[2\]" is .*; expected an array of 2 values',
        ),
        ('["north", "south"]', '["north", 3]', r'"graph.edges\[2\]\[1\]" is 3; expected a string'),
        ('["north", "south"]', "3", r'"graph.edges\[2\]" is 3; expected an array of 2 values'),
        ('  ["north", "south"],\n', "", "The graph is not connected: it falls into 2 parts"),
        ("range = [0.0, 120.0]", "range = [120.0, 0.0]", 'range of column "age" is \\[120.0, 0.0\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, 0.0]", 'range of column "age"'),
        ("range = [0.0, 120.0]", "range = [0.0, inf]", 'range of column "age" is \\[0.0, inf\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, nan]", 'range of column "age" is \\[0.0, nan\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, 1e200]", 'range of column "age"'),
        ("range = [0.0, 120.0]", 'range = ["0", "120"]', r"\"columns\[0\].range\[0\]\" is '0'; expected a number"),
        ("range = [0.0, 120.0]", "range = [false, true]", r'"columns\[0\].range\[0\]" is false; expected a number'),
        (
            "range = [0.0, 120.0]",
            "range = [0.0]",
            r'"columns\[0\].range" is \[0.0\]; expected an array of 2 values, each a number',
        ),
        (
            "range = [0.0, 120.0]",
            "range = 120",
            r'"columns\[0\].range" is 120; expected an array of 2 values, each a number',
        ),
        ("range = [0.0, 120.0]", "", 'Column "age" has neither range nor categories.*statistics = true'),
        ("missing = true\n[[", "missing = 1\n[[", r'"columns\[0\].missing" is 1'),
        ('name = "age"', 'name = " age"', "A column's name is ' age'"),
        ('name = "age"', 'name = "a\\nb"', "A column's name is 'a\\\\nb'"),
        ('name = "age"', 'name = "sex"', 'The column "sex" occurs twice'),
        ('["f", "m"]', "[]", r'"columns\[1\].categories" is \[\]; expected an array of 1 to 1000'),
        ('["f", "m"]', '["f", "f"]', 'Column "sex" has a category twice'),
        ('["f", "m"]', '["f", ""]', "A category of column \"sex\" is ''"),
        ('["f", "m"]', "[1, 2]", r'"columns\[1\].categories\[0\]" is 1; expected a string'),
        ('["f", "m"]', '["f", "m"]\nrange = [0, 1]', 'Column "sex" has a range and categories'),
        ("[model]", "[target]\nrange = [0, 1]\n[model]", "range in \\[target\\] is for a regression"),
        ('kind = "classification"', 'kind = "regression"', "A regression needs the range of its target"),
        ("[model]", "model", "This is not TOML"),
        ("[[agents]]", "[agents]", "This is not TOML"),
        ("[graph]", "[[graph]]", '"graph" is .*; expected a table'),
        ("[model.parameters]", "[model.parameter]", '"model.parameter" is unknown; did you mean "parameters"'),
        ("rounds = 300", "rounds = 300\nrounds = 300", "This is not TOML"),
    ],
)
def test_an_error_in_a_file_names_the_field_its_value_and_the_expected_value(before, after, message):
    assert before in SMALL
    with pytest.raises(ElmeshError, match=f"(?s)^net/network.toml: .*{message}") as caught:
        NetworkConfig.parse(SMALL.replace(before, after, 1), "net/network.toml")
    assert "\n" not in str(caught.value)


REQUIRED = 'name = "net"\nkind = "classification"\n[[agents]]\nname = "a"\naddress = "h:1"\n[model.parameters]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"model.rank" = 3', '"model.rank" is unknown; no field has a dot'),
        ('"a`b" = 3', '"a`b" is unknown'),
        ('[[agents]]\n"x - at `$.y" = 3', r'"agents\[0\].x - at `\$.y" is unknown; the known ones are name, address'),
        ('"x - at `$" = 3', "is unknown"),
        ('"a\\nb" = 3', r'"a\\nb" is unknown'),
        ("agents = [3]", r'"agents\[0\]" is 3; expected a table'),
        ("agents = [[]]", r'"agents\[0\]" is \[\]; expected a table'),
        ("model = 3", '"model" is 3; expected a table'),
        (f"{REQUIRED}mu1{'.a' * 2000} = 1", r"mu1 in .* is a table with the fields \['a'\]; expected"),
        (f"{REQUIRED}mu1 = [{{a{'.a' * 2000} = 1}}]", "mu1 in .* is .*; expected"),
        ("name = {a = 1}", r'"name" is a table with the fields .*; expected a string'),
    ],
)
def test_hostile_names_and_types_are_refused_in_one_short_line(text, message):
    with pytest.raises(ElmeshError, match=f"^hostile: .*{message}") as caught:
        NetworkConfig.parse(text, "hostile")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_refused():
    with pytest.raises(ElmeshError, match=r"nested too deeply|not TOML"):
        NetworkConfig.parse("x = " + "[" * 100_000, "deep")


def test_arrays_above_their_limit_are_refused():
    many = "".join(f'[[agents]]\nname = "a{i}"\naddress = "127.0.0.1:{i + 1}"\n' for i in range(4097))
    with pytest.raises(ElmeshError, match='"agents" is an array of 4097 values; expected an array of 1 to 4096 values'):
        NetworkConfig.parse(f'name = "net"\nkind = "classification"\n{many}', "many")
    with pytest.raises(
        ElmeshError, match=r'"graph.edges" is an array of 65537 values; expected an array of 0 to 65536'
    ):
        network(edges=(("north", "south"),) * 65537)
    with pytest.raises(ElmeshError, match='"routers" is an array of 65 values; expected an array of 0 to 64'):
        network(routers=tuple(f"r:{i + 1}" for i in range(65)))
    with pytest.raises(ElmeshError, match='"columns" is an array of 4097 values'):
        network(columns=tuple(replace(AGE, name=f"x{i}") for i in range(4097)))
    with pytest.raises(ElmeshError, match='"categories" is an array of 1001 values; expected an array of 1 to 1000'):
        InputColumn("x", categories=tuple(map(str, range(1001))))
    with pytest.raises(ElmeshError, match=r'"agents" is \(\); expected an array of 1 to 4096'):
        network(agents=(), edges=())


def test_values_are_checked_also_without_a_file():
    for changes, message in (
        ({"rounds": 0}, '"rounds" is 0; expected an integer from 1 to 10000000'),
        ({"seed": "7"}, "\"model.seed\" is '7'"),
        ({"columns": ("age",)}, r"\"columns\[0\]\" is 'age'; expected a table"),
        ({"weight_scale": math.nan}, '"model.weight_scale" is nan'),
    ):
        with pytest.raises(ElmeshError, match=message):
            network(**changes)
        with pytest.raises(ElmeshError, match=message):
            replace(network(), **changes)


@pytest.mark.thorough
def test_the_largest_network_is_read(tmp_path):
    # A star of 4096 agents, all of them at the same host.
    agents = [f"a{i}" for i in range(4096)]
    made = build_config("large", agents, "star", ["host.example.org:1000"], DataSpec("classification"))
    (tmp_path / "network.toml").write_text(made.to_toml())
    assert NetworkConfig.read(tmp_path / "network.toml").digest == made.digest


def test_a_missing_or_too_large_or_binary_file_is_refused(tmp_path):
    path = tmp_path / "network.toml"
    with pytest.raises(ElmeshError, match="There is no network file"):
        NetworkConfig.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ElmeshError, match="not UTF-8"):
        NetworkConfig.read(path)
    with path.open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(ElmeshError, match=r"has more than 8\.39 MB"):
        NetworkConfig.read(path)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_random_text_is_refused(text):
    # A valid file is longer.
    with pytest.raises(ElmeshError, match=r"^noise: "):
        NetworkConfig.parse(text, "noise")


PIECES = SMALL.splitlines(keepends=True)


@given(st.data())
@examples(100)
def test_a_file_with_deleted_repeated_or_swapped_lines_is_read_or_refused(data):
    lines = list(PIECES)
    for _ in range(data.draw(st.integers(1, 4))):
        i, j = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
        action = data.draw(st.sampled_from(["lose", "double", "swap"]))
        if action == "lose":
            del lines[i]
        elif action == "double":
            lines.insert(j, lines[i])
        else:
            lines[i], lines[j] = lines[j], lines[i]
    try:
        made = NetworkConfig.parse("".join(lines), "changed")
    except ElmeshError:
        return
    assert NetworkConfig.parse(made.to_toml(), "again") == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":7451",
        "host:",
        "host:0",
        "host:65536",
        "host:7451 ",
        "ho st:7451",
        "host:+1",
        "host:٣",
        "256.0.0.1:1",
        "1.2.3:1",
        "0x7f000001:1x",
        "::1:7451",
        "[::1:7451",
        "[::g]:7451",
        "[fe80::1%eth0]:7451",
        "-host:1",
        "host-:1",
        "a..b:1",
        ".a:1",
        "http://host:1",
        "tls/host:1",
        "host:1;rm",
        "host:1#x=y",
        "x" * 254 + ":1",
        3,
        None,
    ],
)
def test_an_invalid_address_is_refused(text):
    with pytest.raises(ElmeshError, match="expected a host and a port"):
        parse_address("address", text)


@given(hosts, st.integers(1, 65535))
def test_an_address_has_one_canonical_form(host, port):
    place = parse_address("address", f"{host.upper()}:{port}")
    assert parse_address("address", str(place)) == place
    assert place.port == port


def test_a_loopback_address_stands_for_all_loopback_hosts():
    for text in ("localhost:1", "127.0.0.1:1", "[::1]:1", "127.0.0.2:1"):
        assert {"localhost", "127.0.0.1", "::1"} <= set(parse_address("address", text).hosts)
    assert parse_address("address", "north.example.org:1").hosts == ["north.example.org"]
    assert parse_address("address", "192.0.2.7:1").hosts == ["192.0.2.7"]


# The graph


def test_agents_are_sorted_by_name_and_have_neighbours():
    made = network()
    assert made.agent_names == ["east", "north", "south", "west"]
    assert [made.index(name) for name in made.agent_names] == [0, 1, 2, 3]
    assert made.neighbors("north") == ["south", "west"]
    assert made.topology.edges.tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    with pytest.raises(ElmeshError, match="no agent 'nord' in the network net; there are 'east'"):
        made.index("nord")


@pytest.mark.thorough
@given(configs(), st.data())
@examples(60)
def test_without_lost_agents_each_connected_component_has_a_config(made, data):
    lost = data.draw(st.sets(st.sampled_from(made.agent_names)))
    graph = nx.Graph(list(made.edges))
    graph.add_nodes_from(made.agent_names)
    graph.remove_nodes_from(lost)
    parts = made.components(lost)
    assert sorted(map(tuple, parts)) == sorted(tuple(sorted(part)) for part in nx.connected_components(graph))
    for part in parts:
        for me in part:
            masked = made.exchange == "sums"
            fewest = made.colluders + 3 if masked and len(part) < len(made.agents) else made.fewest_sites
            if (masked or made.statistics) and len(part) < max(fewest, made.fewest_sites):
                with pytest.raises(ElmeshError, match=r"(masked sums are|sums without some agents are) over at least"):
                    made.without(lost, me)
                continue
            rest = made.without(lost, me)
            assert rest.colluders == made.colluders or not masked
            assert rest.agent_names == part
            assert set(rest.edges) == {tuple(sorted(edge)) for edge in graph.subgraph(part).edges}
            whole = {"agents": made.agents, "edges": made.edges, "max_colluders": made.max_colluders}
            assert replace(rest, **whole) == made


def test_unknown_and_lost_agents_have_no_component():
    with pytest.raises(ElmeshError, match="no agent 'nord'"):
        network().components(["nord"])
    with pytest.raises(ElmeshError, match="no agent 'nord'"):
        network().without(["south"], "nord")
    with pytest.raises(ElmeshError, match="itself one of the lost agents"):
        network().without(["south"], "south")
    assert network().without([], "north") == network()


# The solver


@pytest.mark.parametrize("solver", ["dmtl-elm", "fo-dmtl-elm"])
@pytest.mark.parametrize("more", [{}, {"gamma": "paper", "tau": 30.0, "zeta": 1.0}])
def test_with_basis_agents_exchange_bases_with_neighbours_and_nothing_else(solver, more):
    made = network(n_hidden=8, rank=3, rounds=5, solver=solver, parameters={**NUMBERS, **more})
    rng = np.random.default_rng(0)
    tasks = own_tasks([rng.normal(size=(20, 8)) for _ in range(4)], [rng.normal(size=(20, 2)) for _ in range(4)])
    _, steps = run_peers(made.make_solver(), tasks, made.topology, rank=3)
    sent = [requests[0] for requests in steps if not isinstance(requests[0], RoundReport)]
    assert len(sent) == 6  # the start, and each round
    assert all(isinstance(request, NeighborSum) and request.value.shape == (8, 3) for request in sent)


def test_with_basis_the_solver_runs_all_rounds_without_agreement():
    solver = network(rounds=7, rank=3).make_solver()
    assert isinstance(solver, DMTLELM)
    assert (solver.init, solver.certify, solver.tol) == ("seed", False, 0.0)
    assert (solver.max_iter, solver.rank) == (7, 3)
    assert (solver.mu1, solver.mu2, solver.rho) == (1.0, 1.0, 1.0)
    assert set(solver.graph.nodes) == set(network().agent_names)
    assert {tuple(sorted(edge)) for edge in solver.graph.edges} == set(network().edges)


def test_with_basis_the_first_order_solver_is_available():
    solver = network(solver="fo-dmtl-elm", parameters={**NUMBERS, "tau": 30.0, "gamma": "paper"}).make_solver()
    assert isinstance(solver, FODMTLELM)
    assert (solver.init, solver.certify, solver.tol, solver.tau, solver.gamma) == ("seed", False, 0.0, 30.0, "paper")


@pytest.mark.parametrize("name", ["dmtl-elm", "fo-dmtl-elm"])
@pytest.mark.parametrize("parameter", ["mu1", "mu2", "rho"])
@pytest.mark.parametrize("value", [None, "auto"])
def test_with_basis_shared_parameters_must_be_numbers(name, parameter, value):
    parameters = {**NUMBERS, parameter: value} if value else {k: v for k, v in NUMBERS.items() if k != parameter}
    with pytest.raises(ElmeshError, match=f'{parameter} must be a number.*exchange = "sums"'):
        network(solver=name, parameters=parameters)


@pytest.mark.parametrize(
    ("parameter", "value", "only"),
    [
        ("init", "spectral", '"seed"'),
        ("init", "random", '"seed"'),
        ("certify", True, "false"),
        ("tol", 0.1, "0.0"),
    ],
)
def test_with_basis_parameters_that_need_other_messages_are_refused(parameter, value, only):
    with pytest.raises(ElmeshError, match=f'{parameter} can only be {only}, not .*exchange = "sums"'):
        network(parameters={**NUMBERS, parameter: value})
    assert network(parameters={**NUMBERS, parameter: json.loads(only)}).make_solver().get_params()[parameter] == (
        json.loads(only)
    )


def test_with_basis_the_rank_must_be_a_number():
    with pytest.raises(ElmeshError, match=r'rank must be a number.*exchange = "sums"'):
        network(rank="auto")


def test_with_basis_a_solver_that_sends_more_is_refused():
    with pytest.raises(
        ElmeshError, match=r'mesh-elm cannot be used, because it sends more than U_t.*exchange = "sums"'
    ):
        network(solver="mesh-elm", parameters={})


def test_with_sums_all_parameters_may_be_automatic():
    solver = network(exchange="sums", rank="auto", solver="mesh-elm", parameters={}, rounds=40).make_solver()
    assert isinstance(solver, MeshELM)
    shared_alone = MeshELM(
        common=False, private=False, max_iter=40, graph=solver.graph, rows_per_feature=20.0, weigh_sites=False
    )
    assert solver.get_params() == shared_alone.get_params()
    assert solver.certify


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_masked_sums_may_have_fewer_bits(bits):
    assert network(exchange="sums", parameters={"message_bits": bits}).make_solver().message_bits == bits


@pytest.mark.parametrize("bits", [2, 8, "auto"])
def test_masked_sums_cannot_be_of_coarse_differences(bits):
    with pytest.raises(ElmeshError, match="masked sums have 16, 32 or 64 bits per number"):
        network(exchange="sums", parameters={"message_bits": bits})


def test_bits_that_no_message_can_have_are_refused():
    with pytest.raises(ElmeshError, match="message_bits must be one of"):
        network(exchange="sums", parameters={"message_bits": 3})


@pytest.mark.parametrize("solver", ["dmtl-elm", "fo-dmtl-elm"])
def test_with_sums_a_solver_that_sends_bases_is_refused(solver):
    with pytest.raises(ElmeshError, match=f'{solver} sends U_t to neighbours.*exchange = "basis"'):
        network(exchange="sums", solver=solver, parameters={"rho": "auto"})


@pytest.mark.parametrize(("agents", "why"), [(1, "the total is its own part"), (2, "has the other's")])
def test_masked_sums_of_fewer_than_three_agents_are_refused_unless_the_file_allows_them(agents, why):
    names = ["north", "south"][:agents]
    fields = {
        "agents": tuple(AgentEntry(name, f"127.0.0.1:{7451 + i}") for i, name in enumerate(names)),
        "edges": (("north", "south"),) if agents == 2 else (),
    }
    with pytest.raises(ElmeshError, match=f"{why}.*fewest_sites in the network file"):
        network(exchange="sums", parameters={}, **fields)
    assert network(exchange="sums", parameters={}, fewest_sites=agents, **fields).agent_names == names


def test_a_part_of_a_network_that_is_too_small_for_sums_is_refused():
    whole = network(exchange="sums", parameters={}, max_colluders=0)
    assert len(whole.without(["west"], "north").agents) == 3
    with pytest.raises(ElmeshError, match=r"There are 2 agents .*masked sums are over at least 3 agents"):
        whole.without(["west", "east"], "north")


def test_colluders_cannot_have_others_declared_lost_to_see_a_sum_of_few():
    whole = network(exchange="sums", parameters={})
    with pytest.raises(ElmeshError, match=r"Of 4 agents 3 would be left, of which 1 may collude.* at least 4"):
        whole.without(["west"], "north")


def test_more_colluders_than_leave_two_others_are_refused():
    with pytest.raises(ElmeshError, match="max_colluders is 3, and there are 4 sites"):
        network(exchange="sums", parameters={}, max_colluders=3)
    with pytest.raises(ElmeshError, match="no effect without exchange"):
        network(exchange="basis", max_colluders=1)
    assert network(exchange="sums", parameters={}, max_colluders=2).colluders == 2
    assert network(exchange="sums", parameters={}).colluders == 1


@pytest.mark.parametrize(
    ("exchange", "parameters", "solver", "now"),
    [
        ("basis", {"method": "admm", "message_bits": 64, **NUMBERS}, "dmtl-elm", NUMBERS),
        ("sums", {}, "mesh-elm", {}),
        ("sums", {"method": "varpro", "init": "seed", "mu1": 2.0}, "mesh-elm", {"mu1": 2.0}),
        ("sums", {"message_bits": 16, "tol": 0.1}, "mesh-elm", {"message_bits": 16, "tol": 0.1}),
    ],
)
def test_dmtl_elm_in_a_file_of_version_0_4_is_the_method_that_it_was(exchange, parameters, solver, now):
    made = network(exchange=exchange, solver="dmtl-elm", parameters=parameters)
    assert (made.solver, made.parameters) == (solver, now)
    assert made.digest == network(exchange=exchange, solver=solver, parameters=now).digest


@pytest.mark.parametrize("solver", ["dnsp", "dgsp", "fedrep"])
def test_a_solver_with_a_hub_is_refused_before_anything_starts(solver):
    with pytest.raises(ElmeshError, match=r"solver is .*; a network can use one of|which a network does not provide"):
        network(exchange="sums", solver=solver, parameters={})


# The columns


def test_declared_ranges_scale_uniform_numbers_to_mean_0_and_standard_deviation_1():
    made = network(kind="regression", target_range=(-6.0, 6.0))
    schema = make_schema(made, "site", ["y"], whole_labels=False)
    ages = np.linspace(0.0, 120.0, 100_001)
    frame = pd.DataFrame({"site": "north", "age": ages, "sex": "f", "y": ages / 10 - 6})
    X, tasks = schema.encode(frame)
    assert schema.feature_names == ["age", "age is missing", "sex = f", "sex = m"]
    assert set(tasks) == {"north"}
    for values in (X[:, 0], schema.targets(frame)):
        assert abs(values.mean()) < 1e-12
        assert values.std() == pytest.approx(1.0, rel=1e-4)
    assert X[:, 1:].tolist()[0] == [0.0, 1.0, 0.0]


def test_a_missing_number_is_encoded_as_the_middle_of_its_range():
    schema = make_schema(network(), "site", ["y"], whole_labels=True)
    assert schema.whole_labels
    X, _ = schema.encode(pd.DataFrame({"site": ["a"], "age": [None], "sex": ["m"], "y": [1]}))
    assert X.tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_several_targets_of_a_regression_share_the_range():
    schema = make_schema(network(kind="regression", target_range=(0.0, 2.0)), "site", ["y", "z"], whole_labels=False)
    assert [(t.name, t.mean, t.std) for t in schema.target_columns] == [
        (name, 1.0, pytest.approx(2 / math.sqrt(12))) for name in ("y", "z")
    ]


def test_the_error_on_a_file_without_columns_explains_how_to_add_them():
    made = network(columns=())
    with pytest.raises(ElmeshError, match=r"declares no columns to learn from; add a section \[\[columns\]\].*--like"):
        make_schema(made, "site", ["y"], whole_labels=False)


@pytest.mark.parametrize(("task", "targets"), [("age", ["y"]), ("site", ["sex"]), ("site", ["site"])])
def test_a_column_has_one_role(task, targets):
    with pytest.raises(ElmeshError, match="is used twice"):
        make_schema(network(), task, targets, whole_labels=False)


@pytest.mark.parametrize("targets", [[], ["y", "z"]])
def test_a_classification_has_one_target(targets):
    with pytest.raises(ElmeshError, match=f"given {len(targets)} targets"):
        make_schema(network(), "site", targets, whole_labels=False)


def test_statistics_scale_only_the_columns_without_a_range():
    made = network(columns=(AGE, InputColumn("dose"), SEX), statistics=True)
    assert NetworkConfig.parse(made.to_toml(), "a copy") == made
    assert made.unscaled_columns == ["dose"]
    schema = make_schema(made, "site", ["y"], whole_labels=False, statistics={"dose": (3.0, 2.0), "age": (1.0, 1.0)})
    assert [(c.name, c.mean, c.fill_value) for c in schema.numeric] == [("age", 60.0, 60.0), ("dose", 3.0, 3.0)]
    assert schema.numeric[1].std == 2.0
    with pytest.raises(ElmeshError, match=r'Column "dose" has no range .* must be exchanged first'):
        make_schema(made, "site", ["y"], whole_labels=False)
    with pytest.raises(ElmeshError, match='statistics of column "dose" are not finite'):
        make_schema(made, "site", ["y"], whole_labels=False, statistics={"dose": (math.nan, 2.0)})


def test_a_table_with_constant_columns_only_is_refused():
    made = network(columns=(InputColumn("dose"),), statistics=True)
    with pytest.raises(ElmeshError, match="No column is left to learn from"):
        make_schema(made, "site", ["y"], whole_labels=False, statistics={"dose": (3.0, 0.0)})


def test_the_automatic_weight_scale_is_that_of_any_table():
    assert network().weight_scale_for(12) == weight_scale(12)
    assert network(weight_scale=0.25).weight_scale_for(12) == 0.25


# Example tables


@given(st.floats(-1e90, 1e90), st.floats(-1e90, 1e90))
def test_a_range_is_rounded_outwards_by_at_most_a_fifth(a, b):
    low, high = round_outwards(min(a, b), max(a, b))
    assert low <= min(a, b)
    assert high >= max(a, b)
    assert low < high
    if abs(b - a) > 1e-9 * max(abs(a), abs(b), 1e-200):
        assert high - low <= 1.2000001 * abs(b - a)


@pytest.mark.filterwarnings("ignore:.* alone determines the target")
def test_kind_columns_and_ranges_are_inferred_from_an_example_table():
    frame = pd.DataFrame(
        {
            "when": ["a", "b"] * 30,
            "age": [21.37, 67.92] * 30,
            "dose": [None, 1.0] * 30,
            "same": [1.0] * 60,
            "days": np.linspace(0.123, 99.1, 60),
        }
    )
    with pytest.warns(UserWarning, match="same"):
        example = DataSpec.from_table(frame, "days", drop=["when"])
    assert example == DataSpec(
        "regression",
        'column "days" holds numbers that are not whole',
        (InputColumn("age", range=(21.0, 68.0)), InputColumn("dose", range=(0.9, 1.1), missing=True)),
        (3.0, 95.0),  # the middle 90 %
    )
    with pytest.warns(UserWarning, match="same"):
        example = DataSpec.from_table(frame, "when")
    assert (example.kind, len(example.classes)) == ("classification", 2)


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("package", "works"),
    [
        pytest.param(
            "cryptography", "import elmesh.netconfig.config_builder", id="cryptography", marks=pytest.mark.slow
        ),
        pytest.param("msgspec", "", id="msgspec"),
    ],
)
def test_without_the_extra_a_command_names_the_package_to_install(package, works):
    """To create a network file works without cryptography."""
    code = (
        f"import sys; sys.modules['{package}'] = None\n{works}\n"
        "from typer.testing import CliRunner\n"
        "from elmesh.cli import app\n"
        "result = CliRunner().invoke(app, ['network', 'status', 'agent.toml'])\n"
        "print(result.exit_code, result.stderr)"
    )
    assert f'2 elmesh: This command needs the package {package}; install it with: pip install "elmesh[network]"' in (
        in_new_process(code)
    )


@pytest.mark.thorough
def test_the_command_imports_the_packages_of_the_extra_only_when_it_needs_them():
    code = (
        "import sys; from typer.testing import CliRunner; from elmesh.cli import app\n"
        "assert CliRunner().invoke(app, ['network', '--help']).exit_code == 0\n"
        "print(sorted({'msgspec', 'cryptography', 'zenoh'} & set(sys.modules)))"
    )
    assert in_new_process(code).strip() == "[]"


def test_the_file_is_valid_toml():
    assert tomllib.loads(network().to_toml())["columns"][1] == {
        "name": "sex",
        "categories": ["f", "m"],
        "missing": False,
    }


# Classes, and the parts of the weights.

PARTS = {"exchange": "sums", "solver": "mesh-elm", "rank": "auto"}
DIGEST_BEFORE = "d30dce07bb6c06c0"
ALL = {"common": "auto", "private": "auto"}


@pytest.mark.parametrize("classes", [("well", "ill"), (7, 3, 5)])
def test_declared_classes_are_sorted_and_survive_the_file(classes):
    config = network(classes=classes)
    assert config.classes == tuple(sorted(classes))
    again = NetworkConfig.parse(config.to_toml(), "a copy")
    assert (again.classes, again.digest) == (config.classes, config.digest)
    assert config.digest != network().digest


def test_a_file_without_classes_has_the_fingerprint_of_earlier_versions():
    assert "classes" not in network().to_toml()
    # Of the same content, by the code of version 0.5.
    assert network().digest.hex()[:16] == DIGEST_BEFORE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a",)}, "two or more different ones"),
        ({"classes": ("a", "a")}, "two or more different ones"),
        ({"classes": ("a", 1)}, "all of them text or all of them whole numbers"),
        ({"classes": ("a", " b")}, "A class"),
        ({"kind": "regression", "target_range": (0.0, 1.0), "classes": ("a", "b")}, "remove them from a regression"),
    ],
)
def test_classes_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ElmeshError, match=message):
        network(**changes)


def test_the_parts_of_the_weights_are_those_that_the_file_names():
    target = {"kind": "regression", "target_range": (0.0, 1.0)}
    before = network(**PARTS, parameters={}, **target)
    assert not before.model_solver().grouped_features
    assert before.weight_scale_for(12) == weight_scale(12)
    now = network(**PARTS, parameters=ALL, **target)
    assert now.model_solver().grouped_features
    assert now.weight_scale_for(12) == "auto"
    assert replace(now, weight_scale=0.25).weight_scale_for(12) == 0.25


def test_classes_that_are_not_declared_have_no_common_part():
    without, declared = (network(**PARTS, parameters=ALL, classes=classes) for classes in (None, ("a", "b")))
    assert not without.model_solver().grouped_features
    assert without.weight_scale_for(12) == weight_scale(12)
    assert declared.model_solver().grouped_features


@pytest.mark.parametrize("rank", [1, "auto"])
@pytest.mark.parametrize(("n_hidden", "outputs"), [(10, 2), (200, 2), (300, 40)])
def test_the_largest_message_has_room_for_the_totals_of_the_common_part(rank, n_hidden, outputs):
    classes = tuple(range(outputs))
    config = network(**(PARTS | {"rank": rank}), parameters=ALL, classes=classes, n_hidden=n_hidden)
    encoded = 2 + 2  # a number that may be missing, and two categories
    assert config.n_encoded == encoded
    p = 1 + encoded + n_hidden
    assert max_message_bytes(config) >= HEADER_BYTES + 8 * (p * (p + 1) // 2 + p * outputs + outputs)
