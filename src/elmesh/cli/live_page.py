"""The content of the live page of an agent: its network as a drawing, facts, neighbours and the last lines of its log.

Everything comes from the agent's status file and its network file. The page is rendered here, with all text escaped;
the browser only replaces it by the next one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from elmesh.cli.errors import one_line
from elmesh.cli.status_text import headline, is_sound, is_waiting, moment, schedule_lines, schedule_problems
from elmesh.netconfig.config import NetworkConfig
from elmesh.netconfig.expiry import expiry_sentences
from elmesh.netconfig.identity import Identity
from elmesh.text import data_size, duration, shortened

__all__ = ["render_page", "render_state"]

# The drawing: width and height, the radius of its circle of sites, and the distance of names from it.
_WIDTH, _HEIGHT, _RADIUS, _GAP = 460.0, 290.0, 100.0, 16.0
_LONGEST_NAME = 12


@dataclass(frozen=True)
class Site:
    """A site in the drawing: where it is, and whether it is this one, "present", "absent" or "unknown" from here."""

    name: str
    state: str
    x: float
    y: float
    label: tuple[float, float]
    anchor: str


@dataclass(frozen=True)
class Line:
    """A connection in the drawing."""

    state: str
    ends: tuple[float, float, float, float]


def _draw(config: NetworkConfig, own: str, neighbors: dict[str, Any]) -> tuple[list[Site], list[Line]]:
    """Return the sites of a network on a circle, and its connections."""
    names, sites = config.agent_names, {}
    for k, name in enumerate(names):
        angle = 2 * math.pi * k / len(names) - math.pi / 2
        across, down = math.cos(angle), math.sin(angle)
        link = neighbors.get(name)
        state = "own" if name == own else "unknown" if link is None else "present" if link["present"] else "absent"
        x, y = _WIDTH / 2 + _RADIUS * across, _HEIGHT / 2 + _RADIUS * down
        label = round(x + _GAP * across, 1), round(y + 1.4 * _GAP * down + 4, 1)
        anchor = "middle" if abs(across) < 0.3 else "start" if across > 0 else "end"
        sites[name] = Site(shortened(name, _LONGEST_NAME), state, round(x, 1), round(y, 1), label, anchor)
    lines = []
    for a, b in config.edges:
        other = b if a == own else a if b == own else None
        state = "unknown" if other is None else sites[other].state
        lines.append(Line(state, (sites[a].x, sites[a].y, sites[b].x, sites[b].y)))
    return list(sites.values()), lines


def _facts(status: dict[str, Any]) -> list[tuple[str, str]]:
    """Return numbers of a run, and what each is."""
    facts = []
    if status["round"] is not None:
        facts.append((f"{status['round']} of {status['rounds']}", "rounds done; a run that converges takes fewer"))
    elif status["totals"] is not None:
        done, most = status["totals"]["done"], status["totals"]["of"]
        facts.append((f"{done} of {most}", "totals of matrices formed; sums of a few numbers come before and after"))
    if status["seconds_left"] is not None and status["running"]:
        left, by_rounds = duration(status["seconds_left"]), status["round"] is not None
        most = "left at most, at the pace so far" if by_rounds else "left at the pace so far"
        facts.append((left if by_rounds else f"about {left}", most))
    if status["consensus_gap"] is not None:
        facts.append((f"{status['consensus_gap']:.2g}", "consensus gap: relative distance from the neighbours' mean"))
    facts.append((data_size(status["traffic"]["sent_bytes"]), f"sent; {status['traffic']['resent']:,} messages resent"))
    released = status["releases"]
    if released is not None:
        facts.append((f"{released['releases']:,}", "releases to other sites in this run"))
        if released["epsilon"] is not None or released["largest_epsilon"] is not None:
            most = released["largest_epsilon"]
            spent = f"{released['epsilon'] or 0.0:.3g}" + ("" if most is None else f" of {most:.3g}")
            facts.append((spent, "epsilon spent, over all runs of this site"))
    return facts


def render_state(identity: Identity, status: dict[str, Any] | None, problem: str = "") -> str:
    """Return the part of the page that changes, as HTML.

    ``status`` is None if the agent has never run, or its status cannot be read because of a ``problem``.
    """
    config, name = identity.config, identity.name
    if status is None:
        title = f"Agent {name} of {config.name} is not running: it has not run here yet."
        mark, problems, facts, log, schedule, keys = "unsound", [], [], [], [], None
        if problem:
            title, problems = f"The status of agent {name} of {config.name} cannot be read.", [problem]
    else:
        title, problems, facts = headline(status), _problems(status), _facts(status)
        mark = "waiting" if is_waiting(status) else "sound" if is_sound(status) else "unsound"
        log = [(moment(when), text) for when, text in reversed(status["log"])]
        schedule, keys = schedule_lines(status), status["keys"]
    neighbors = status["neighbors"] if status is not None and status["running"] else {}
    sites, lines = _draw(config, name, neighbors)
    return _template("live_state.html").render(
        title=title,
        mark=mark,
        problems=[one_line(text) for text in (*problems, *expiry_sentences(identity))],
        facts=facts,
        sites=sites,
        lines=lines,
        neighbors=[(name, link["present"], moment(link["since"])) for name, link in neighbors.items()],
        log=log,
        schedule=schedule,
        keys=keys,
        width=_WIDTH,
        height=_HEIGHT,
    )


def _problems(status: dict[str, Any]) -> list[str]:
    found = [status["problem"]] if status["problem"] else []
    if status["checkpoint"]["problem"]:
        found.append(f"The checkpoint cannot be written: {status['checkpoint']['problem'].lower()}.")
    if status["evicted"]:
        found.append(f"The run continues without {', '.join(status['evicted'])}.")
    return found + schedule_problems(status)


def render_page(identity: Identity, state: str) -> str:
    """Return the whole page around its state, complete without its script."""
    page = _template("live_page.html")
    return page.render(agent=identity.name, network=identity.config.name, state=state)


@cache
def _template(name: str) -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((files("elmesh.cli") / name).read_text(encoding="utf-8"))
