"""The network file says one thing in one way: what is read is what was written, and what is wrong is refused."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmesh import DMTLELM, FODMTLELM
from elmesh.comm.requests import Neighbours, Report
from elmesh.data.features import weight_scale
from elmesh.errors import ElmeshError
from elmesh.netconfig import CategoricalInput, Member, NumericInput, Plan
from elmesh.netconfig.config_builder import draft_plan
from elmesh.netconfig.example import Example, outwards
from elmesh.netconfig.exchange import EXCHANGES
from elmesh.netconfig.names import parse_address
from helpers.peers import own_tasks, run_peers

NUMBERS = {"mu1": 1.0, "mu2": 1.0, "rho": 1.0}
AGE = NumericInput("age", 0.0, 120.0, True)
SEX = CategoricalInput("sex", ("f", "m"), False)


def plan(**changes: Any) -> Plan:
    """A ring of four, with some fields changed."""
    names = ["north", "south", "east", "west"]
    fields: dict[str, Any] = {
        "name": "net",
        "members": tuple(Member(name, f"127.0.0.1:{7451 + i}") for i, name in enumerate(names)),
        "edges": (("north", "south"), ("south", "east"), ("east", "west"), ("west", "north")),
        "kind": "classification",
        "columns": (AGE, SEX),
        "parameters": NUMBERS,
    }
    return Plan(**(fields | changes))


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
def columns(draw) -> tuple[NumericInput | CategoricalInput, ...]:
    found: list[NumericInput | CategoricalInput] = []
    for name in draw(st.lists(texts, max_size=4, unique=True)):
        missing = draw(st.booleans())
        if draw(st.booleans()):
            least, most = draw(ends)
            found.append(NumericInput(name, least, most, missing))
        else:
            known = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
            found.append(CategoricalInput(name, tuple(known), missing))
    return tuple(found)


@st.composite
def plans(draw) -> Plan:
    agents = draw(st.lists(names, min_size=1, max_size=7, unique=True))
    ports = draw(st.lists(st.integers(1, 65535), min_size=len(agents), max_size=len(agents), unique=True))
    tree = [(agents[draw(st.integers(0, i - 1))], agents[i]) for i in range(1, len(agents))]
    pairs = {tuple(sorted(draw(st.permutations(agents))[:2])) for _ in range(draw(st.integers(0, 3)))}
    edges = {tuple(sorted(edge)) for edge in tree} | {pair for pair in pairs if len(pair) == 2}
    kind = draw(st.sampled_from(["classification", "regression"]))
    exchange = draw(st.sampled_from(EXCHANGES))
    positive = st.floats(1e-6, 1e6)
    parameters = {name: draw(positive) for name in NUMBERS} | (
        draw(st.sampled_from([{}, {"tau": "20 + d"}, {"zeta": 0.5, "gamma": "paper", "proximal": "standard"}]))
        if exchange == "basis"
        else {"method": "admm", "tol": draw(positive), "certify": draw(st.booleans())}
    )
    hidden = draw(st.integers(1, 10**5))
    return Plan(
        draw(names),
        tuple(Member(name, f"{draw(hosts)}:{port}") for name, port in zip(agents, ports, strict=True)),
        tuple(edges),
        kind,
        columns=draw(columns()),
        target_range=tuple(draw(ends)) if kind == "regression" else None,
        exchange=exchange,
        statistics=draw(st.booleans()),
        rounds=draw(st.integers(1, 10**7)),
        n_hidden=hidden,
        activation=draw(st.sampled_from(["sigmoid", "tanh", "relu", "sine", "none"])),
        weight_scale=draw(st.none() | positive),
        seed=draw(st.integers(0, 2**63 - 1)),
        fit_intercept=draw(st.booleans()),
        rank=draw(st.integers(1, hidden)),
        parameters=parameters,
        most_rows=draw(st.integers(1, 10**12)),
    )


# The file


@given(plans())
@settings(max_examples=60)
def test_what_is_written_is_read_back_the_same(made):
    again = Plan.parse(made.to_toml("A remark of some length. " * 9), "a copy")
    assert again == made
    assert again.digest == made.digest
    assert len(made.digest) == 32


@given(plans(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_comments_line_ends_and_the_order_of_sections_are_no_content(made, random):
    text = "".join(f"{line}\r\n" for line in made.to_toml().splitlines() if not line.startswith("#"))
    assert Plan.parse(f"# another comment\r\n{text}", "a copy").digest == made.digest
    members, edges = list(made.members), [edge[:: random.choice([1, -1])] for edge in made.edges]
    random.shuffle(members)
    random.shuffle(edges)
    assert replace(made, members=tuple(members), edges=tuple(edges)).digest == made.digest


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
        {"members": (*plan().members[:3], Member("west", "127.0.0.1:7999"))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_content_is_another_digest(change):
    assert plan(**change).digest != plan().digest


def test_what_may_be_told_is_content():
    both = {**NUMBERS, "method": "admm"}
    assert plan(exchange="sums", parameters=both).digest != plan(parameters=both).digest


def test_the_digest_stays_what_it_was():
    # Agents of different versions must agree on it.
    assert plan().digest.hex() == "d30dce07bb6c06c0857f091d95c38c5c81e9abfb3e50bcd4ec056a44d476083e"


def test_whole_numbers_and_floats_of_one_value_are_one_parameter():
    assert plan(parameters={"mu1": 1, "mu2": 1, "rho": 1}).digest == plan().digest


def test_every_field_of_the_file_has_a_comment_that_says_what_it_does():
    text = plan(kind="regression", target_range=(0, 1), parameters={**NUMBERS, "zeta": 2.0}).to_toml()
    for table in re.split(r"\n(?=\[\[)", text)[:1]:
        lines = table.splitlines()
        for i, line in enumerate(lines):
            if re.match(r"\w+ = ", line):
                assert "  # " in line or lines[i - 1].startswith("# "), line
    assert "rho = 1.0  # weight of agreement between neighbours" in text


def test_a_file_need_not_say_what_is_usual():
    text = (
        'name = "net"\nkind = "classification"\n[model.parameters]\nmu1 = 1\nmu2 = 1\nrho = 1\n'
        '[[agents]]\nname = "only"\naddress = "localhost:7451"\n'
    )
    made = Plan.parse(text, "small")
    assert (made.exchange, made.statistics, made.most_rows, made.rounds, made.rank) == ("basis", False, 10**6, 300, 6)
    assert made.names == ["only"]
    assert made.neighbours("only") == []


def test_a_file_is_read_from_disk(tmp_path):
    (tmp_path / "network.toml").write_text(plan().to_toml(), encoding="utf-8")
    assert Plan.read(tmp_path / "network.toml") == plan()


# What is refused

SMALL = plan(edges=(("north", "south"), ("south", "east"), ("east", "west"))).to_toml()


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
        ('name = "net"', "", '"name" is not there'),
        ('kind = "classification"', "", '"kind" is not there'),
        (
            'kind = "classification"',
            'kind = "ranking"',
            "kind is 'ranking'; expected one of classification, regression",
        ),
        ('kind = "classification"', "kind = 3", '"kind" is 3; expected a text in quotes'),
        ('name = "net"', 'name = "Net"', "network's name is 'Net'"),
        ('exchange = "basis"', 'exchange = "all"', "exchange is 'all'; expected one of basis, sums"),
        ("statistics = false", 'statistics = "no"', "\"statistics\" is 'no'; expected true or false"),
        ("rounds = 300", "rounds = 0", '"rounds" is 0; expected a whole number from 1'),
        ("rounds = 300", "rounds = true", '"rounds" is true'),
        ("rounds = 300", "rounds = 300.0", '"rounds" is 300.0'),
        ("rounds = 300", "rounds = 99999999", '"rounds" is 99999999; expected a whole number from 1 to 10000000'),
        ("rounds = 300", f"rounds = {'9' * 50}", '"rounds" is a number of more than 40 digits'),
        ("rounds = 300", f"rounds = {'9' * 5000}", "This is not TOML"),
        ("rounds = 300", "rounds = 2024-01-01", '"rounds" is datetime'),
        ("most_rows = 1000000", "most_rows = -1", '"most_rows" is -1'),
        ("routers = []", 'routers = ["nowhere"]', "The address of a router is 'nowhere'"),
        ("routers = []", "routers = [3]", '"routers" is \\[3\\]; expected a list of addresses'),
        ("routers = []", 'routers = ["127.0.0.1:7451"]', 'address "127.0.0.1:7451" is there twice'),
        ("n_hidden = 300", "n_hidden = 1000000", '"model.n_hidden" is 1000000'),
        ('activation = "sigmoid"', 'activation = "step"', "activation is 'step'; expected one of sigmoid"),
        ('weight_scale = "auto"', "weight_scale = -1", '"model.weight_scale" is -1; expected a finite number above 0'),
        ('weight_scale = "auto"', "weight_scale = inf", '"model.weight_scale" is inf'),
        ('weight_scale = "auto"', "weight_scale = nan", '"model.weight_scale" is nan'),
        ('weight_scale = "auto"', "weight_scale = 1e9", "weight_scale is 1000000000.0"),
        ("seed = 0", "seed = -1", '"model.seed" is -1'),
        ("fit_intercept = true", "fit_intercept = 1", '"model.fit_intercept" is 1'),
        ("rank = 6", "rank = 301", "rank is 301; expected a whole number from 1 to 300"),
        ("rank = 6", 'rank = "many"', "\"model.rank\" is 'many'"),
        ('solver = "dmtl-elm"', 'solver = "local-elm"', "solver is 'local-elm'; expected one of dmtl-elm, fo-dmtl-elm"),
        ("rho = 1.0", "roh = 1.0", '"roh" is no parameter of dmtl-elm; did you mean "rho"'),
        ("rho = 1.0", "rho = -1.0", "rho must be a finite number, more than zero"),
        ("rho = 1.0", "rho = nan", "rho must be a finite number"),
        (
            "rho = 1.0",
            "rho = [1.0, 2.0]",
            "rho in \\[model.parameters\\] is \\[1.0, 2.0\\]; expected a number or a text",
        ),
        ("rho = 1.0", "rho = 1.0\nrank = 3", "rank is no field of .*it is given by rank in \\[model\\]"),
        ("rho = 1.0", 'rho = 1.0\ngraph = "ring"', "graph is no field of"),
        ("rho = 1.0", "rho = 1.0\nmax_iter = 3", "max_iter is no field of .*it is given by rounds"),
        ("rho = 1.0", "rho = 1.0\nmax_bytes = 3", "max_bytes is no field of"),
        ("rho = 1.0", 'rho = 1.0\nruntime = "mpi"', "runtime is no field of"),
        ('name = "east"', 'name = "east coast"', "name of an agent is 'east coast'; expected 1 to 32"),
        ('name = "east"', 'name = "north"', 'The agent "north" is there twice'),
        ("127.0.0.1:7453", "127.0.0.1:7451", 'The address "127.0.0.1:7451" is there twice'),
        ("127.0.0.1:7453", "0.0.0.0:7451", "address of agent east is 0.0.0.0:7451, where nobody can reach it"),
        ("127.0.0.1:7453", "127.0.0.1", "The address of agent east is '127.0.0.1'; expected a host and a port"),
        ('["north", "south"]', '["north", "sooth"]', "names 'sooth', which is no agent; there are 'east', 'north'"),
        ('["north", "south"]', '["north", "north"]', "joins an agent to itself"),
        ('["north", "south"]', '["north", "south"], ["south", "north"]', "is there twice"),
        ('["north", "south"]', '["north", "south", "east"]', "expected pairs of two"),
        ('["north", "south"]', '["north", 3]', "expected pairs of two"),
        ('["north", "south"]', "3", "expected a list of pairs"),
        ('  ["north", "south"],\n', "", "The graph is not connected: it falls into 2 parts"),
        ("range = [0.0, 120.0]", "range = [120.0, 0.0]", 'range of column "age" is \\[120.0, 0.0\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, 0.0]", 'range of column "age"'),
        ("range = [0.0, 120.0]", "range = [0.0, inf]", 'range of column "age" is \\[0.0, inf\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, nan]", 'range of column "age" is \\[0.0, nan\\]'),
        ("range = [0.0, 120.0]", "range = [0.0, 1e200]", 'range of column "age"'),
        ("range = [0.0, 120.0]", 'range = ["0", "120"]', 'range of column "age"'),
        ("range = [0.0, 120.0]", "range = [false, true]", 'range of column "age"'),
        ("range = [0.0, 120.0]", "range = [0.0]", r'"columns\[0\].range" has 1 values; expected two'),
        ("range = [0.0, 120.0]", "range = 120", r'"columns\[0\].range" is 120; expected two numbers'),
        ("range = [0.0, 120.0]", "", 'Column "age" has neither range nor categories.*statistics = true'),
        ("missing = true\n[[", "missing = 1\n[[", r'"columns\[0\].missing" is 1'),
        ('name = "age"', 'name = " age"', "A column's name is ' age'"),
        ('name = "age"', 'name = "a\\nb"', "A column's name is 'a\\\\nb'"),
        ('name = "age"', 'name = "sex"', 'The column "sex" is there twice'),
        ('["f", "m"]', "[]", 'Column "sex" has 0 categories'),
        ('["f", "m"]', '["f", "f"]', 'Column "sex" has a category twice'),
        ('["f", "m"]', '["f", ""]', "A category of column \"sex\" is ''"),
        ('["f", "m"]', "[1, 2]", r'"columns\[1\].categories" is \[1, 2\]; expected a list of texts'),
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
def test_a_wrong_file_is_refused_by_a_sentence_that_names_the_field(before, after, message):
    assert before in SMALL
    with pytest.raises(ElmeshError, match=f"(?s)^net/network.toml: .*{message}") as caught:
        Plan.parse(SMALL.replace(before, after, 1), "net/network.toml")
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_refused():
    with pytest.raises(ElmeshError, match=r"nested too deeply|not TOML"):
        Plan.parse("x = " + "[" * 100_000, "deep")


def test_more_of_anything_than_there_may_be_is_refused():
    many = "".join(f'[[agents]]\nname = "a{i}"\naddress = "127.0.0.1:{i + 1}"\n' for i in range(4097))
    with pytest.raises(ElmeshError, match="There are 4097 agents; 4096 are the most"):
        Plan.parse(f'name = "net"\nkind = "classification"\n{many}', "many")
    with pytest.raises(ElmeshError, match="There are 65537 edges"):
        plan(edges=(("north", "south"),) * 65537)
    with pytest.raises(ElmeshError, match="There are 65 routers"):
        plan(routers=tuple(f"r:{i + 1}" for i in range(65)))
    with pytest.raises(ElmeshError, match="There are 4097 columns"):
        plan(columns=tuple(replace(AGE, name=f"x{i}") for i in range(4097)))
    with pytest.raises(ElmeshError, match="has 1001 categories; expected 1 to 1000"):
        CategoricalInput("x", tuple(map(str, range(1001))), False)
    with pytest.raises(ElmeshError, match="There are 0 agents"):
        plan(members=(), edges=())


def test_the_largest_network_is_read(tmp_path):
    # A star of 4096 agents, all of them at the same host.
    agents = [f"a{i}" for i in range(4096)]
    made = draft_plan("large", agents, "star", ["host.example.org:1000"], Example("classification", "", (), None))
    (tmp_path / "network.toml").write_text(made.to_toml())
    assert Plan.read(tmp_path / "network.toml").digest == made.digest


def test_a_file_that_is_not_there_too_large_or_no_text_is_refused(tmp_path):
    path = tmp_path / "network.toml"
    with pytest.raises(ElmeshError, match="There is no network file"):
        Plan.read(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ElmeshError, match="not UTF-8"):
        Plan.read(path)
    with path.open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(ElmeshError, match="has more than 8388608 bytes"):
        Plan.read(path)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text):
    # A plan needs more than fits in so few characters.
    with pytest.raises(ElmeshError, match=r"^noise: "):
        Plan.parse(text, "noise")


PIECES = SMALL.splitlines(keepends=True)


@given(st.data())
@settings(max_examples=100)
def test_a_file_with_lines_lost_doubled_or_swapped_is_read_or_refused(data):
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
        made = Plan.parse("".join(lines), "spoilt")
    except ElmeshError:
        return
    assert Plan.parse(made.to_toml(), "again") == made


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
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ElmeshError, match="expected a host and a port"):
        parse_address(text, "address")


@given(hosts, st.integers(1, 65535))
def test_an_address_has_one_way_to_be_written(host, port):
    place = parse_address(f"{host.upper()}:{port}", "address")
    assert parse_address(str(place), "address") == place
    assert place.port == port


def test_a_name_or_number_of_this_machine_stands_for_all_of_them():
    for text in ("localhost:1", "127.0.0.1:1", "[::1]:1", "127.0.0.2:1"):
        assert {"localhost", "127.0.0.1", "::1"} <= set(parse_address(text, "address").hosts)
    assert parse_address("north.example.org:1", "address").hosts == ["north.example.org"]
    assert parse_address("192.0.2.7:1", "address").hosts == ["192.0.2.7"]


# The graph


def test_agents_are_numbered_by_name_and_know_their_neighbours():
    made = plan()
    assert made.names == ["east", "north", "south", "west"]
    assert [made.number(name) for name in made.names] == [0, 1, 2, 3]
    assert made.neighbours("north") == ["south", "west"]
    assert made.topology.edges.tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
    with pytest.raises(ElmeshError, match="no agent 'nord' in the network net; there are 'east'"):
        made.number("nord")


@given(plans(), st.data())
@settings(max_examples=60)
def test_what_is_left_without_some_agents_is_a_plan_of_each_connected_part(made, data):
    lost = data.draw(st.sets(st.sampled_from(made.names)))
    graph = nx.Graph(list(made.edges))
    graph.add_nodes_from(made.names)
    graph.remove_nodes_from(lost)
    parts = made.parts(lost)
    assert sorted(map(tuple, parts)) == sorted(tuple(sorted(part)) for part in nx.connected_components(graph))
    for part in parts:
        for me in part:
            rest = made.without(lost, me)
            assert rest.names == part
            assert set(rest.edges) == {tuple(sorted(edge)) for edge in graph.subgraph(part).edges}
            assert replace(rest, members=made.members, edges=made.edges) == made


def test_agents_that_are_unknown_or_gone_have_no_part():
    with pytest.raises(ElmeshError, match="no agent 'nord'"):
        plan().parts(["nord"])
    with pytest.raises(ElmeshError, match="no agent 'nord'"):
        plan().without(["south"], "nord")
    with pytest.raises(ElmeshError, match="cannot go on without itself"):
        plan().without(["south"], "south")
    assert plan().without([], "north") == plan()


# The solver


@pytest.mark.parametrize("solver", ["dmtl-elm", "fo-dmtl-elm"])
@pytest.mark.parametrize("more", [{}, {"gamma": "paper", "tau": 30.0, "zeta": 1.0}])
def test_with_basis_agents_ask_for_their_neighbours_bases_and_for_nothing_else(solver, more):
    made = plan(n_hidden=8, rank=3, rounds=5, solver=solver, parameters={**NUMBERS, **more})
    rng = np.random.default_rng(0)
    tasks = own_tasks([rng.normal(size=(20, 8)) for _ in range(4)], [rng.normal(size=(20, 2)) for _ in range(4)])
    _, told = run_peers(made.make_solver(), tasks, made.topology, rank=3)
    said = [requests[0] for requests in told if not isinstance(requests[0], Report)]
    assert len(said) == 6  # the start, and each round
    assert all(isinstance(request, Neighbours) and request.value.shape == (8, 3) for request in said)


def test_with_basis_the_solver_takes_all_its_rounds_and_agrees_on_nothing():
    solver = plan(rounds=7, rank=3).make_solver()
    assert isinstance(solver, DMTLELM)
    assert (solver.method, solver.init, solver.certify, solver.tol) == ("admm", "seed", False, 0.0)
    assert (solver.max_iter, solver.rank, solver.runtime) == (7, 3, "stacked")
    assert (solver.mu1, solver.mu2, solver.rho) == (1.0, 1.0, 1.0)
    assert set(solver.graph.nodes) == set(plan().names)
    assert {tuple(sorted(edge)) for edge in solver.graph.edges} == set(plan().edges)


def test_with_basis_the_first_order_solver_is_there_too():
    solver = plan(solver="fo-dmtl-elm", parameters={**NUMBERS, "tau": 30.0, "gamma": "paper"}).make_solver()
    assert isinstance(solver, FODMTLELM)
    assert (solver.init, solver.certify, solver.tol, solver.tau, solver.gamma) == ("seed", False, 0.0, 30.0, "paper")


@pytest.mark.parametrize("name", ["dmtl-elm", "fo-dmtl-elm"])
@pytest.mark.parametrize("parameter", ["mu1", "mu2", "rho"])
@pytest.mark.parametrize("value", [None, "auto"])
def test_with_basis_what_all_must_know_is_a_number(name, parameter, value):
    parameters = {**NUMBERS, parameter: value} if value else {k: v for k, v in NUMBERS.items() if k != parameter}
    with pytest.raises(ElmeshError, match=f'{parameter} must be a number.*exchange = "sums"'):
        plan(solver=name, parameters=parameters)


@pytest.mark.parametrize(
    ("parameter", "value", "only"),
    [
        ("method", "varpro", '"admm"'),
        ("init", "spectral", '"seed"'),
        ("init", "random", '"seed"'),
        ("certify", True, "false"),
        ("tol", 0.1, "0.0"),
        ("message_bits", 8, "64"),
    ],
)
def test_with_basis_what_needs_more_to_be_told_is_refused(parameter, value, only):
    with pytest.raises(ElmeshError, match=f'{parameter} can only be {only}, not .*exchange = "sums"'):
        plan(parameters={**NUMBERS, parameter: value})
    assert plan(parameters={**NUMBERS, parameter: json.loads(only)}).make_solver().get_params()[parameter] == (
        json.loads(only)
    )


def test_with_basis_the_rank_is_a_number():
    with pytest.raises(ElmeshError, match=r'rank must be a number.*exchange = "sums"'):
        plan(rank="auto")


def test_with_sums_everything_may_be_found_together():
    solver = plan(exchange="sums", rank="auto", parameters={}, rounds=40).make_solver()
    assert isinstance(solver, DMTLELM)
    expected = DMTLELM(max_iter=40, graph=solver.graph)
    assert solver.get_params() == expected.get_params()
    assert solver.certify


def test_with_sums_messages_may_be_short_and_the_method_the_papers():
    assert plan(exchange="sums", parameters={"message_bits": 8}).make_solver().message_bits == 8
    assert plan(exchange="sums", parameters={"method": "admm"}).make_solver().method == "admm"
    with pytest.raises(ElmeshError, match='rho is a parameter of method="admm"'):
        plan(exchange="sums", parameters={"rho": 1.0})
    with pytest.raises(ElmeshError, match="message_bits must be one of"):
        plan(exchange="sums", parameters={"message_bits": 3})


# The columns


def test_declared_ranges_make_numbers_of_mean_0_and_deviation_1_if_spread_evenly():
    made = plan(kind="regression", target_range=(-6.0, 6.0))
    schema = made.schema("site", ["y"], whole_labels=False)
    ages = np.linspace(0.0, 120.0, 100_001)
    frame = pd.DataFrame({"site": "north", "age": ages, "sex": "f", "y": ages / 10 - 6})
    X, tasks = schema.encode(frame)
    assert schema.columns == ["age", "age is missing", "sex = f", "sex = m"]
    assert set(tasks) == {"north"}
    for values in (X[:, 0], schema.targets(frame)):
        assert abs(values.mean()) < 1e-12
        assert values.std() == pytest.approx(1.0, rel=1e-4)
    assert X[:, 1:].tolist()[0] == [0.0, 1.0, 0.0]


def test_a_missing_number_counts_as_the_middle_of_its_range():
    schema = plan().schema("site", ["y"], whole_labels=True)
    assert schema.whole_labels
    X, _ = schema.encode(pd.DataFrame({"site": ["a"], "age": [None], "sex": ["m"], "y": [1]}))
    assert X.tolist() == [[0.0, 1.0, 0.0, 1.0]]


def test_several_targets_of_a_regression_share_the_range():
    schema = plan(kind="regression", target_range=(0.0, 2.0)).schema("site", ["y", "z"], whole_labels=False)
    assert [(t.name, t.mean, t.std) for t in schema.target_columns] == [
        (name, 1.0, pytest.approx(2 / math.sqrt(12))) for name in ("y", "z")
    ]


def test_a_file_without_columns_says_how_to_fill_them_in():
    made = plan(columns=())
    with pytest.raises(ElmeshError, match=r"names no columns to learn from; add a section \[\[columns\]\].*--like"):
        made.schema("site", ["y"], whole_labels=False)


@pytest.mark.parametrize(("task", "targets"), [("age", ["y"]), ("site", ["sex"]), ("site", ["site"])])
def test_a_column_has_one_use(task, targets):
    with pytest.raises(ElmeshError, match="is used twice"):
        plan().schema(task, targets, whole_labels=False)


@pytest.mark.parametrize("targets", [[], ["y", "z"]])
def test_a_classification_has_one_target(targets):
    with pytest.raises(ElmeshError, match=f"given {len(targets)} targets"):
        plan().schema("site", targets, whole_labels=False)


def test_statistics_scale_the_columns_that_have_no_range_and_no_others():
    made = plan(columns=(AGE, NumericInput("dose", None, None, False), SEX), statistics=True)
    assert Plan.parse(made.to_toml(), "a copy") == made
    assert made.unscaled == ["dose"]
    schema = made.schema("site", ["y"], whole_labels=False, stats={"dose": (3.0, 2.0), "age": (1.0, 1.0)})
    assert [(c.name, c.mean, c.median) for c in schema.numeric] == [("age", 60.0, 60.0), ("dose", 3.0, 3.0)]
    assert schema.numeric[1].std == 2.0
    with pytest.raises(ElmeshError, match=r'Column "dose" has no range .* must be exchanged first'):
        made.schema("site", ["y"], whole_labels=False)
    with pytest.raises(ElmeshError, match='statistics of column "dose" are not finite'):
        made.schema("site", ["y"], whole_labels=False, stats={"dose": (math.nan, 2.0)})


def test_a_table_whose_columns_are_all_constant_has_nothing_to_learn_from():
    made = plan(columns=(NumericInput("dose", None, None, False),), statistics=True)
    with pytest.raises(ElmeshError, match="No column is left to learn from"):
        made.schema("site", ["y"], whole_labels=False, stats={"dose": (3.0, 0.0)})


def test_hidden_weights_are_as_large_as_for_any_table_of_so_many_columns():
    assert plan().scale_for(12) == weight_scale(12)
    assert plan(weight_scale=0.25).scale_for(12) == 0.25


# Example tables


@given(st.floats(-1e90, 1e90), st.floats(-1e90, 1e90))
def test_a_range_is_rounded_outwards_and_not_by_much(a, b):
    least, most = outwards(min(a, b), max(a, b))
    assert least <= min(a, b)
    assert most >= max(a, b)
    assert least < most
    if abs(b - a) > 1e-9 * max(abs(a), abs(b), 1e-200):
        assert most - least <= 1.2000001 * abs(b - a)


def test_an_example_gives_kind_columns_and_ranges_and_nothing_of_its_rows():
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
        example = Example.of(frame, "days", drop=["when"])
    assert example == Example(
        "regression",
        'column "days" holds numbers that are not whole',
        (NumericInput("age", 21.0, 68.0, False), NumericInput("dose", 0.9, 1.1, True)),
        (0.0, 100.0),
    )
    with pytest.warns(UserWarning, match="same"):
        example = Example.of(frame, "when")
    assert (example.kind, example.n_classes) == ("classification", 2)


def test_the_network_file_needs_no_cryptography():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from elmesh.netconfig.config import Plan\n"
        "import elmesh.netconfig.identity, elmesh.netconfig.layout, elmesh.cli\n"
        "from elmesh.netconfig.keys import make_key\n"
        "try: make_key('x')\n"
        "except ValueError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "elmesh[network]"' in told.stdout, told.stderr


def test_the_file_is_plain_toml():
    assert tomllib.loads(plan().to_toml())["columns"][1] == {"name": "sex", "categories": ["f", "m"], "missing": False}
