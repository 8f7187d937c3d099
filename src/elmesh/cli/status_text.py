"""An agent's status in words: what it does, how far it is, who is there, and what has left the site."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from elmesh.agent import RENEWED
from elmesh.text import count, data_size, duration

__all__ = [
    "absent_neighbors",
    "headline",
    "is_sound",
    "is_waiting",
    "moment",
    "one_liner",
    "schedule_lines",
    "schedule_problems",
    "status_lines",
]

_PHASES = {
    "starting": "is starting",
    "waiting": "waits for a person: elmesh network confirm",
    "fitting": "is learning with the other sites",
    "staying": "has saved its model, and stays until its neighbours have theirs",
    "scheduled": "waits for its next run",
    "ended": "has ended; its model is saved",
    "stopped": "was stopped; the same command resumes the run",
    "failed": "has ended with an error",
}


def headline(status: dict[str, Any]) -> str:
    """Return what the agent does, and plainly so if it does not run."""
    name = f"Agent {status['agent']} of {status['network']}"
    if not status["running"]:
        if status["phase"] in ("ended", "failed", "stopped"):
            return f"{name} is not running: it {_PHASES[status['phase']]} ({moment(status['time'])})."
        then = "continues by the schedule" if status["phase"] == "scheduled" else "resumes the run"
        return (
            f"{name} is not running: its process was killed, last seen {moment(status['time'])}. The same command "
            f"{then}."
        )
    if status["age"] > RENEWED:
        return (
            f"{name} has not renewed its status for {duration(status['age'])}: its process hangs, or its disk accepts "
            "no writes."
        )
    if is_waiting(status):
        return f"{name} {_waits(status)}."
    return f"{name} {_PHASES[status['phase']]}."


def is_waiting(status: dict[str, Any]) -> bool:
    """Return whether an agent that learns with others waits for a neighbour that is absent."""
    responds = status["running"] and status["age"] <= RENEWED
    return bool(responds and status["phase"] == "fitting" and absent_neighbors(status))


def _waits(status: dict[str, Any]) -> str:
    absent = absent_neighbors(status)
    since = min(status["neighbors"][name]["since"] for name in absent)
    then = "gives up" if status["on_loss"] == "stop" else "goes on without"
    begun = f"{_PHASES['fitting']}, and " if status["traffic"]["received_messages"] else ""
    return (
        f"{begun}waits for {', '.join(absent)} since {moment(since)}; it {then} at {moment(since + status['patience'])}"
    )


def is_sound(status: dict[str, Any]) -> bool:
    """Return whether an agent runs, or has ended as it should."""
    return bool(status["age"] <= RENEWED if status["running"] else status["phase"] == "ended")


def moment(when: float) -> str:
    """Return a time as a clock shows it here, with the date if it is not today's."""
    local = datetime.fromtimestamp(when).astimezone()
    today = local.date() == datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M}"


def absent_neighbors(status: dict[str, Any]) -> list[str]:
    """Return the names of the neighbours that are absent."""
    return [name for name, link in status["neighbors"].items() if not link["present"]]


def status_lines(status: dict[str, Any]) -> list[str]:
    """Return a status as lines of text, without its neighbours."""
    lines = [headline(status)]
    if status["problem"]:
        lines.append(status["problem"])
    if progress := _progress(status):
        lines.append(f"{progress}.")
    traffic = status["traffic"]
    lines.append(
        f"{data_size(traffic['sent_bytes'])} sent in {traffic['sent_messages']:,} messages, {traffic['resent']:,} "
        f"resent; {data_size(traffic['received_bytes'])} received."
    )
    if status["keys"]:
        lines.append(f"Keys of all sites: {status['keys']}; compare them with the other sites'.")
    released = status["releases"]
    if released is not None and released["releases"]:
        lines.append(f"{count(released['releases'], 'release')} in this run{_spent(released)}.")
    if status["checkpoint"]["problem"]:
        lines.append(f"The checkpoint cannot be written: {status['checkpoint']['problem'].lower()}.")
    if status["evicted"]:
        lines.append(f"Continuing without {', '.join(status['evicted'])}.")
    return [*lines, *schedule_lines(status), *schedule_problems(status), *status.get("warnings", [])]


def schedule_lines(status: dict[str, Any]) -> list[str]:
    """Return what a status has of scheduled runs."""
    schedule = status.get("schedule")
    if schedule is None:
        return []
    lines = []
    if schedule["next"] is not None and status["running"]:
        wait = max(schedule["next"] - time.time(), 0.0)
        lines.append(f"Next run {moment(schedule['next'])}, in {duration(wait)}.")
    return lines + ([schedule["last"]] if schedule["last"] else [])


def schedule_problems(status: dict[str, Any]) -> list[str]:
    """Return what a status has of scheduled runs that someone should look into."""
    schedule = status.get("schedule") or {}
    return [schedule[what] for what in ("skipped", "warning") if schedule.get(what)]


def one_liner(status: dict[str, Any]) -> str:
    """Return a status as one line that changes only if the status does."""
    phase = status["phase"] if is_sound(status) else "not running" if not status["running"] else "not responding"
    parts = [phase, *([status["problem"]] if status["problem"] else [])]
    if progress := _progress(status):
        parts.append(progress[0].lower() + progress[1:])
    links, absent = status["neighbors"], absent_neighbors(status)
    if links and status["running"]:
        who = f" (absent: {', '.join(absent)})" if absent else ""
        parts.append(f"{len(links) - len(absent)} of {count(len(links), 'neighbour')} present{who}")
    return "; ".join(parts)


def _progress(status: dict[str, Any]) -> str:
    left, totals = status["seconds_left"], status["totals"]
    if status["round"] is not None:
        gap = "unknown" if status["consensus_gap"] is None else f"{status['consensus_gap']:.2g}"
        words = "" if left is None else f"; at most {duration(left)} left at this pace"
        return f"Round {status['round']} of {status['rounds']}; consensus gap {gap}{words}"
    if totals is None:
        return ""
    words = "" if left is None else f"; about {duration(left)} left at this pace"
    return f"{totals['done']} of {count(totals['of'], 'total')} of matrices formed{words}"


def _spent(released: dict[str, Any]) -> str:
    if released["epsilon"] is None:
        return ""
    most = "" if released["largest_epsilon"] is None else f" of {released['largest_epsilon']:.3g}"
    return f"; epsilon of all runs so far {released['epsilon']:.3g}{most}"
