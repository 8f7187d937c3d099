"""The files for monitoring: they are valid, and name only metrics that agents serve."""

import json
import re
import shutil
import subprocess
import urllib.request

import pytest
import yaml

from elmesh.agent import NetworkAgent
from elmesh.cli.metrics import serve_metrics
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.layout import NetworkLayout
from helpers.network import ROOT, free_ports, make_config

RULES, DASHBOARD = ROOT / "deploy" / "prometheus-rules.yml", ROOT / "deploy" / "grafana-dashboard.json"
# Served by all agents with a certificate whose dates are known.
ELSEWHERE = {"elmesh_certificate_expires_seconds"}


class Monitored:
    """An agent whose status has a value for everything."""

    def __init__(self, agent):
        self.identity, self._agent = agent.identity, agent

    def status(self):
        numbers = {
            "round": 1,
            "rounds": 2,
            "objective": 1.0,
            "consensus_gap": 0.1,
            "residual": 0.1,
            "seconds_left": 1.0,
        }
        released = {"releases": 1, "matrices": 0, "epsilon": 0.5, "largest_epsilon": 1.0}
        schedule = {"next": None, "last": "", "warning": "worse", "skipped": "", "version": 3,
                    "worse": True, "rows_gone": 2}  # fmt: skip
        neighbors = {"south": {"present": False}}
        totals = {"done": 1, "of": 3}
        more = {"totals": totals, "releases": released, "schedule": schedule, "neighbors": neighbors}
        return self._agent.status() | numbers | more


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return the lines of all metrics."""
    folder = tmp_path_factory.mktemp("metrics")
    NetworkLayout(folder, make_config(("east", "north", "south"))).write(days=2)
    (port,) = free_ports(1)
    with (
        NetworkAgent(Identity.read(folder / "north" / "agent.toml")) as agent,
        serve_metrics(Monitored(agent), port),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        return answer.read().decode()


def names(text):
    return set(re.findall(r"\belmesh_\w+", text))


def test_every_metric_of_the_alerts_and_the_dashboard_is_served(served):
    known = set(re.findall(r"^(elmesh_\w+)\{", served, re.MULTILINE)) | ELSEWHERE
    rules = {rule["alert"]: names(rule["expr"]) for group in groups() for rule in group["rules"]}
    assert set.union(*rules.values()) <= known
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {panel["title"]: names(" ".join(t["expr"] for t in panel["targets"])) for panel in panels}
    assert all(shown.values())
    assert set.union(*shown.values()) <= known


def groups():
    return yaml.safe_load(RULES.read_text())["groups"]


def test_there_is_an_alert_for_everything_that_an_operator_must_know():
    found = {rule["alert"].removeprefix("Elmesh") for group in groups() for rule in group["rules"]}
    wanted = {"AgentDown", "NeighbourAway", "NoProgress", "CertificateExpires", "BudgetNearlySpent", "DiskFull"}
    assert wanted <= found
    for group in groups():
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert {"summary", "action"} == set(rule["annotations"])
    page = (ROOT / "docs" / "running.md").read_text()
    assert set(re.findall(r"^\| `Elmesh(\w+)`", page, re.MULTILINE)) == found


def test_the_values_of_the_metrics_are_those_of_the_status(served):
    labels = 'agent="north",network="test"'
    for line in (
        f"elmesh_epsilon_spent{{{labels}}} 0.5",
        f"elmesh_epsilon_budget{{{labels}}} 1.0",
        f"elmesh_model_version{{{labels}}} 3.0",
        f"elmesh_model_worse{{{labels}}} 1.0",
        f"elmesh_run_skipped{{{labels}}} 0.0",
        f"elmesh_checkpoint_failing{{{labels}}} 0.0",
        'elmesh_phase{agent="north",network="test",phase="starting"} 1.0',
        'elmesh_phase{agent="north",network="test",phase="fitting"} 0.0',
        'elmesh_neighbor_present{agent="north",neighbor="south",network="test"} 0.0',
    ):
        assert line in served, line


def test_prometheus_accepts_the_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([promtool, "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_fire_and_are_silent_when_they_should(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    on = 'network="net", agent="north"'

    def series(name, values, more=""):
        return {"series": f"{name}{{{on}{more}}}", "values": values}

    tests = [
        {
            "interval": "1m",
            "input_series": [
                # A neighbour leaves after ten minutes; the agent gives up ten minutes later, and its metrics end.
                {"series": 'up{job="elmesh", instance="north"}', "values": "1x20 0x30"},
                series("elmesh_neighbor_present", "1x10 0x10 stale", ', neighbor="south"'),
                series("elmesh_phase", "1x20 stale", ', phase="fitting"'),
                series("elmesh_received_messages_total", "1+1x10 11x10 stale"),
                series("elmesh_epsilon_spent", "0.7x20 0.9x20"),
                series("elmesh_epsilon_budget", "1x40"),
                series("elmesh_certificate_expires_seconds", "2500000x80", ', what="certificate"'),
            ],
            "alert_rule_test": [
                {"eval_time": "9m", "alertname": name, "exp_alerts": []}
                for name in ("ElmeshAgentDown", "ElmeshNeighbourAway", "ElmeshNoProgress", "ElmeshBudgetNearlySpent")
            ],
            "promql_expr_test": [
                # Neighbour away, no progress; then agent down, budget; the certificate is pending for an hour.
                {
                    "expr": 'count(ALERTS{alertstate="firing", alertname=~"Elmesh(NeighbourAway|NoProgress)"})',
                    "eval_time": "19m",
                    "exp_samples": [{"labels": "{}", "value": 2}],
                },
                {
                    "expr": 'count(ALERTS{alertstate="firing", alertname=~"Elmesh(AgentDown|BudgetNearlySpent)"})',
                    "eval_time": "40m",
                    "exp_samples": [{"labels": "{}", "value": 2}],
                },
            ],
        }
    ]
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
