"""Tables of the arena: from a folder, or from a server of Rdatasets, which is here one on the loopback address."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest

from elmesh import arena
from elmesh.arena import load_arena
from elmesh.datasets import public as datasets
from elmesh.errors import ElmeshError


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Serve the files of a dict, and nothing else; there is no folder of data, and the cache is empty."""
    files, requests = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            found = files.get(self.path)
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.delenv("ELMESH_DATA", raising=False)
    monkeypatch.setattr(datasets, "get_data_home", lambda: str(tmp_path / "home"))
    monkeypatch.setattr(arena, "RDATASETS", f"http://127.0.0.1:{listener.server_port}/csv")
    yield files, requests
    listener.shutdown()
    thread.join()
    listener.server_close()


def csv(**columns):
    return pd.DataFrame(columns).to_csv(index_label="rownames").encode()


def diamonds(n):
    rng = np.random.default_rng(0)
    sizes = {name: rng.uniform(1, 5, n) for name in ("carat", "depth", "table", "x", "y", "z", "price")}
    return csv(cut=["Ideal"] * n, color=rng.choice(["D", "E"], n), clarity=["SI1"] * n, **sizes)


def test_a_table_is_downloaded_once_derived_and_cached(server):
    files, requests = server
    n = 14
    numbers = {
        name: np.arange(1.0, n + 1) for name in ["year", "pcap", "hwy", "water", "util", "pc", "gsp", "emp", "unemp"]
    }
    files["/csv/plm/Produc.csv"] = csv(state=["A"] * 8 + ["B"] * 6, region=[1] * n, **numbers)
    table, again = load_arena("produc"), load_arena("produc")
    assert requests == ["/csv/plm/Produc.csv"]
    assert list(table.X.columns) == ["pcap", "hwy", "water", "util", "pc", "emp", "unemp", "year"]
    np.testing.assert_allclose(table.y, np.log(numbers["gsp"]))
    np.testing.assert_allclose(table.X["emp"], np.log(numbers["emp"]))
    np.testing.assert_allclose(table.X["unemp"], numbers["unemp"])
    assert table.sites.tolist() == ["A"] * 8 + ["B"] * 6
    assert (table.kind, table.share) == ("regression", 0.5)
    pd.testing.assert_frame_equal(table.X, again.X)


def test_sites_with_fewer_than_six_rows_are_left_out(server):
    files, _ = server
    sites = [7] * 6 + [8] * 5
    numbers = {name: range(11) for name in ("lang", "IQ", "GS", "SES", "COMB")}
    files["/csv/MASS/nlschools.csv"] = csv(**{"class": sites}, **numbers)
    assert load_arena("nlschools").sites.tolist() == ["7"] * 6


def test_of_a_large_table_6000_rows_are_drawn_without_repetition_in_their_order(server):
    files, _ = server
    data = diamonds(6100)
    files["/csv/ggplot2/diamonds.csv"] = data
    table = load_arena("diamonds")
    assert len(table.y) == 6000
    assert list(table.X.columns) == ["carat", "cut", "depth", "table", "len", "wid", "dep"]
    assert set(table.sites) == {"DSI1", "ESI1"}
    source = np.log([float(line.split(",")[-1]) for line in data.decode().splitlines()[1:]]).tolist()
    kept = np.isin(np.round(source, 9), np.round(table.y, 9))
    assert kept.sum() == 6000
    np.testing.assert_allclose(np.asarray(source)[kept], table.y)


def test_a_table_that_is_not_drawn_keeps_all_rows_and_names_its_classes(server):
    files, _ = server
    n = 6500
    answers = ["N", "Y"] * (n // 2)
    files["/csv/lme4/VerbAgg.csv"] = csv(Anger=range(n), Gender=["M"] * n, item=["a"] * n, r2=answers)
    table = load_arena("verbagg")
    assert table.y.tolist() == ["no", "yes"] * (n // 2)
    assert (table.kind, table.share) == ("classification", 0.3)


def test_gaps_stay_gaps(server):
    files, _ = server
    n = 12
    numbers = {name: range(n) for name in ["year", "g", "h", "X2b", "X3b", "hr", "bb", "r"]}
    files["/csv/plyr/baseball.csv"] = csv(
        team=["T"] * n, ab=[100] + [101] * (n - 1), so=[None, None, *range(10)], **numbers
    )
    table = load_arena("baseball")
    assert len(table.y) == n - 1
    assert table.X["so"].isna().sum() == 1


def test_a_folder_comes_first_and_may_have_further_tables(server, monkeypatch, tmp_path):
    _, requests = server
    folder = tmp_path / "arena"
    folder.mkdir()
    for name in ("produc", "mine"):
        (folder / f"{name}.csv").write_text("a,site,y\n1,01,2\n3,02,4\n")
    facts = {"kind": "reg", "share": 0.25}
    (folder / "tables.json").write_text(json.dumps({"produc": facts, "mine": facts}))
    monkeypatch.setenv("ELMESH_DATA", str(tmp_path))
    for name in ("produc", "mine"):
        table = load_arena(name)
        assert (table.sites.tolist(), table.y.tolist(), table.share) == (["01", "02"], [2.0, 4.0], 0.25)
    assert requests == []


def test_school_is_that_of_load_school(server, monkeypatch):
    school = datasets.School(np.eye(3), np.arange(3.0), np.array([0, 0, 5]))
    monkeypatch.setattr(arena, "load_school", lambda: school)
    table = load_arena("school")
    assert (table.sites.tolist(), table.y.tolist(), table.share) == (["0", "0", "5"], [0.0, 1.0, 2.0], 0.75)


def test_an_unknown_table_is_refused_with_the_known_ones(server):
    with pytest.raises(ElmeshError, match=r"no table 'mine'; it has nlschools, .*, school"):
        load_arena("mine")


def test_without_the_file_on_the_server_the_error_says_where_to_put_the_table(server):
    with pytest.raises(ElmeshError, match=r"plm/Cigar\.csv failed .*404.*ELMESH_DATA"):
        load_arena("cigar")


def test_a_data_set_with_another_layout_is_refused_and_not_cached(server, tmp_path):
    files, _ = server
    files["/csv/plm/Cigar.csv"] = csv(state=[1], year=[63])
    with pytest.raises(ElmeshError, match="has no column 'cpi'"):
        load_arena("cigar")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("address", ["file:///etc", "ftp://127.0.0.1"])
def test_other_schemes_are_refused(server, monkeypatch, address):
    monkeypatch.setattr(arena, "RDATASETS", address)
    with pytest.raises(ElmeshError, match="must start with https"):
        load_arena("cigar")


@pytest.mark.parametrize(
    ("table", "facts", "words"),
    [
        ("a,site\n1,x\n", '{"mine": {"kind": "reg", "share": 0.5}}', "columns site and y"),
        ("a,site,y\n1,x,word\n", '{"mine": {"kind": "reg", "share": 0.5}}', "columns site and y"),
        ("a,site,y\n1,x,2\n", "{}", "no entry 'mine'"),
        ("a,site,y\n1,x,2\n", '{"mine": {"kind": "other", "share": 0.5}}', "no entry 'mine'"),
    ],
)
def test_damaged_files_are_named(server, monkeypatch, tmp_path, table, facts, words):
    folder = tmp_path / "arena"
    folder.mkdir()
    (folder / "mine.csv").write_text(table)
    (folder / "tables.json").write_text(facts)
    monkeypatch.setenv("ELMESH_DATA", str(tmp_path))
    with pytest.raises(ElmeshError, match=words):
        load_arena("mine")
