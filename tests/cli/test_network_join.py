"""``elmesh network join`` leads a site from its invitation to its first run, and refuses whatever does not fit."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmesh import load

pytest.importorskip("cryptography", reason="keys and certificates need cryptography, of elmesh[network]")

from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.invitation import Invitation
from elmesh.netconfig.pki.authority import make_authority
from elmesh.netconfig.pki.verify import fingerprint, load_certificates
from elmesh.netconfig.toml import toml_value
from helpers.commands import Command
from helpers.forked import ForkedProcess
from helpers.network import LIMIT, free_ports, rows_of

SITES = ("north", "south", "west")
NETWORK = Command("network")
run, worked, refused = NETWORK.run, NETWORK.worked, NETWORK.refused


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def created(tmp_path_factory) -> Path:
    """A folder with a network of three sites, and their tables."""
    folder = tmp_path_factory.mktemp("created")
    for name in SITES:
        rows_of(name).to_csv(folder / f"{name}.csv", index=False)
    listen = ",".join(f"127.0.0.1:{port}" for port in free_ports(len(SITES)))
    options = ["--hidden", 20, "--like", folder / "north.csv", "--target", "y", "--csr", "--quiet"]
    worked("create", folder / "net", "--agents", ",".join(SITES), "--listen", listen, *options)
    return folder


@pytest.fixture
def net(created, tmp_path, monkeypatch) -> Path:
    """A network of three sites whose tables are beside it."""
    shutil.copytree(created, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "net"


def sign(net: Path, site: str) -> Path:
    """Sign the request of a site at the authority; return the certificate."""
    path = net.parent / f"{site}.pem"
    worked("sign", net / "ca", f"{site}/{site}.csr", "--network", net / "network.toml", "--out", path)
    return path


def test_three_invited_sites_join_are_certified_and_learn_together(net):
    invitations = {name: net / "invitations" / f"{name}.toml" for name in SITES}
    assert sorted(path.name for path in net.iterdir()) == ["ca", "invitations", "network.toml"]
    for name, path in invitations.items():
        first = worked("join", path)
        assert f"Next, you: send {name}/{name}.csr to the keeper of the authority." in first.stdout
        assert fingerprint(load_certificates(net / "ca" / "ca.pem")[0]) in first.stdout
        key = Path(name) / "key.pem"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        before = tree(Path(name))
        again = worked("join", path)
        assert "Done before: the key" in again.stdout
        assert tree(Path(name)) == before
    processes = []
    for name, path in invitations.items():
        options = ["--certificate", sign(net, name), "--data", f"{name}.csv", "--target", "y", "--wait", 0]
        argv = [str(word) for word in ("network", "join", path, *options)]
        processes.append(ForkedProcess(argv, f"{name}.out", f"{name}.err", str(net.parent)))
    for name, process in zip(SITES, processes, strict=True):
        assert process.wait(LIMIT) == 0, Path(f"{name}.err").read_text()
        command = f"Next, you: elmesh agent {name}/agent.toml --data {name}.csv --target y --out {name}-model"
        assert command in Path(f"{name}.out").read_text()
    weights = [load(f"{name}-model").W_.tobytes() for name in SITES]
    assert len(set(weights)) == 1


def test_a_site_that_has_joined_is_shown_its_next_command(net):
    worked("join", net / "invitations" / "north.toml", "--json")
    certificate = sign(net, "north")
    certificate.rename("north/north.pem")
    found = json.loads(worked("join", net / "invitations" / "north.toml", "--wait", 0, "--json").stdout)
    assert (found["step"], found["sound"], len(found["neighbors"])) == ("ready", False, 2)
    assert found["next"] == "elmesh agent north/agent.toml --data TABLE --target COLUMN --out north-model"
    assert Identity.read("north/agent.toml").config.digest.hex() == found["digest"]
    before = tree(Path("north"))
    shown = worked("join", net / "invitations" / "north.toml", "--wait", 0).output
    assert "2 of 2 neighbours did not answer: south, west. A neighbour that has not joined yet" in " ".join(
        shown.split()
    )
    assert tree(Path("north")) == before


def test_the_invitation_of_a_router_ends_with_the_command_of_a_router(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    router = ["--router", "relay.example.org:7447"]
    worked("create", "net", "--agents", "a,b,c", "--listen", "h:1", *router, "--csr")
    worked("join", "net/invitations/router.toml")
    worked("sign", "net/ca", "router/router.csr", "--network", "net/network.toml")
    found = worked("join", "net/invitations/router.toml")
    assert found.stdout.splitlines()[-1] == "Next, you: elmesh network router router/agent.toml"
    assert "A router has no table" in refused("join", "net/invitations/router.toml", "--data", "x.csv", "--target", "y")


def test_an_invitation_holds_nothing_private_and_nothing_of_other_sites_folders(net):
    worked("invite", net, "--force")
    for path in (net / "invitations").iterdir():
        text = path.read_text()
        assert "PRIVATE" not in text
        assert str(net) not in text
    # Not even if a file of the authority has a key in it.
    own = net.parent / "own.pem"
    own.write_bytes((net / "ca" / "ca.key").read_bytes() + (net / "ca" / "ca.pem").read_bytes())
    worked("invite", net, "--authority", own, "--force")
    assert "PRIVATE" not in (net / "invitations" / "north.toml").read_text()


def test_with_an_authority_of_their_own_no_other_is_made(tmp_path):
    own = make_authority(tmp_path / "own", "hospital")
    three = ["--agents", "a,b,c", "--listen", "h:1", "--csr"]
    shown = worked("create", tmp_path / "net", *three, "--authority", tmp_path / "own" / "ca.pem")
    assert sorted(path.name for path in (tmp_path / "net").iterdir()) == ["invitations", "network.toml"]
    assert "Have your authority sign each NAME.csr" in shown.stdout
    invited = Invitation.read(tmp_path / "net" / "invitations" / "a.toml")
    assert invited.authorities == [own.certificate]
    assert "give --csr too" in refused(
        "create", tmp_path / "x", *three[:-1], "--authority", tmp_path / "own" / "ca.pem"
    )


def test_a_fingerprint_given_by_telephone_is_compared(net):
    path = net / "invitations" / "north.toml"
    (right,) = Invitation.read(path).fingerprints
    wrong = right.replace(right[0], "0" if right[0] != "0" else "1")
    assert "do not join" in refused("join", path, "--fingerprint", wrong)
    assert not Path("north").exists()
    worked("join", path, "--fingerprint", right.upper().replace(" ", ":"))


def test_an_invitation_of_another_authority_does_not_break_a_site_that_has_joined(net):
    """Even with --force: its certificate would no longer be valid."""
    worked("join", net / "invitations" / "north.toml", "--json")
    worked("join", net / "invitations" / "north.toml", "--certificate", sign(net, "north"), "--wait", 0, "--json")
    before = tree(Path("north"))
    shutil.copytree("net", "other")
    worked("rotate", "other")
    worked("rotate", "other", "--finish", "--force")
    worked("invite", "other", "--force")
    message = refused("join", "other/invitations/north.toml", "--force")
    assert "nothing was changed" in message
    assert tree(Path("north")) == before


def test_invitations_are_not_overwritten_and_follow_the_network_file(net):
    before = tree(net / "invitations")
    assert "exists; choose another place, or give --force" in refused("invite", net)
    text = (net / "network.toml").read_text()
    (net / "network.toml").write_text(text.replace("n_hidden = 20", "n_hidden = 21"))
    worked("join", net / "invitations" / "north.toml")
    worked("invite", net, "--force")
    assert all(data != before[name] for name, data in tree(net / "invitations").items())
    key = Path("north/key.pem").read_bytes()
    assert "network.toml is not the one of the invitation" in refused("join", net / "invitations" / "north.toml")
    worked("join", net / "invitations" / "north.toml", "--force")
    assert Path("north/network.toml").read_text() == (net / "network.toml").read_text()
    assert Path("north/key.pem").read_bytes() == key


# Certificates that are not those of the site.


def test_the_certificate_of_another_key_name_or_authority_is_refused(net, tmp_path):
    for name in ("north", "south"):
        worked("join", net / "invitations" / f"{name}.toml")
    path = net / "invitations" / "north.toml"
    assert "is not the certificate of north/key.pem" in refused("join", path, "--certificate", sign(net, "south"))
    worked("create", "other", "--agents", ",".join(SITES), "--listen", "127.0.0.1:7451", "--csr", "--quiet")
    other = ["sign", "other/ca", "north/north.csr", "--network", "other/network.toml", "--out", "n.pem"]
    worked(*other)
    assert "was not issued by the authority" in refused("join", path, "--certificate", "n.pem")
    worked("create", "moved", "--agents", ",".join(SITES), "--listen", "moved.example.org:1", "--csr", "--quiet")
    worked("sign", net / "ca", "north/north.csr", "--network", "moved/network.toml", "--out", "m.pem")
    assert "is for the hosts moved.example.org" in refused("join", path, "--certificate", "m.pem")
    assert "There is no certificate nowhere.pem" in refused("join", path, "--certificate", "nowhere.pem")
    assert not Path("north/agent.toml").exists()
    assert not Path("north/certificate.pem").exists()
    worked("join", path, "--certificate", sign(net, "north"), "--wait", 0)
    worked("sign", net / "ca", "north/north.csr", "--network", net / "network.toml", "--out", "new.pem")
    assert "elmesh network renew north/agent.toml" in refused("join", path, "--certificate", "new.pem")


# Hostile invitations.


def altered(path: Path, **changes: object) -> Path:
    """Write an invitation with other fields."""
    fields = tomllib.loads(path.read_text()) | changes
    lines = [f"{name} = {toml_value(tuple(x) if isinstance(x, list) else x)}" for name, x in fields.items()]
    target = path.with_name("altered.toml")
    target.write_text("\n".join(lines))
    return target


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": "../north"}, "The name of the agent is '../north'"),
        ({"agent": "/etc"}, "The name of the agent is '/etc'"),
        ({"agent": "eve"}, "no agent 'eve' in the network"),
        ({"agent": "south"}, "The field address does not agree"),
        ({"network": "other"}, "The field network does not agree"),
        ({"address": "127.0.0.1:1"}, "The field address does not agree"),
        ({"digest": "00" * 32}, "The field digest does not agree"),
        ({"fingerprints": []}, "The field fingerprints does not agree"),
        ({"fingerprints": ["0"] * 9}, 'The field "fingerprints" is an array of 9 values'),
        ({"authority": "none"}, "holds no certificate"),
        ({"file": 'name = "net"'}, "The network file in the invitation: "),
        ({"format": 2}, 'The field "format" is 2'),
        ({"more": 1}, 'The field "more" is unknown'),
    ],
)
def test_an_altered_invitation_is_refused_and_writes_nothing(net, changes, words):
    path = altered(net / "invitations" / "north.toml", **changes)
    before = tree(net.parent)
    assert words in refused("join", path)
    assert tree(net.parent) == before


def test_an_invitation_with_the_certificate_of_an_agent_as_authority_is_refused(net):
    worked("join", net / "invitations" / "south.toml")
    leaf = load_certificates(sign(net, "south"))[0]
    path = altered(
        net / "invitations" / "north.toml", authority=(net.parent / "south.pem").read_text(),
        fingerprints=[fingerprint(leaf)],
    )  # fmt: skip
    assert "no certificate of an authority" in refused("join", path)


def test_an_invitation_that_is_too_large_is_refused(net):
    path = net / "invitations" / "north.toml"
    with path.open("ab") as file:
        file.write(b"#" * (13 << 20))
    assert "more than 12.6 MB, too much for an invitation file" in refused("join", path)


@pytest.mark.parametrize("what", ["file", "full", "link"])
def test_what_is_in_the_place_of_the_folder_is_left_alone(net, what):
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    if what == "file":
        Path("north").write_text("mine")
    else:
        os.symlink("mine", "north") if what == "link" else Path("mine").rename("north")
    before = tree(net.parent)
    assert "is not the folder of an agent" in refused("join", net / "invitations" / "north.toml")
    assert tree(net.parent) == before


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(["", '"', '"""', "\\", "\r", "\x00"]))
def test_text_of_several_lines_is_the_same_after_it_was_written_and_read(text, end):
    text = f"{text}\n{end}"
    assert tomllib.loads(f"a = {toml_value(text)}")["a"] == text


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_random_text_is_no_invitation(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("x") / "i.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ElmeshError, match=re.escape(str(path))):
        Invitation.read(path)
