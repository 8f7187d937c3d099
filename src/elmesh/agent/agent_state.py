"""The state of an agent as arrays and JSON: the run, and every message that a neighbour may ask for again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.network.edge_queue import SentMessage
from elmesh.comm.network.peer import LinkState
from elmesh.comm.network.wire import Kind
from elmesh.run.array_io import Arrays, SavedRun, snapshot_arrays
from elmesh.run.monitor import RoundSnapshot

__all__ = ["AgentState", "encode_state"]

_VERSION = 4


@dataclass(frozen=True, eq=False)
class AgentState:
    """What an agent resumes from.

    ``rank`` is the number of columns of U, ``data`` the digest of the agent's data, and ``result`` the summary of its
    model once that is saved: then nothing is left but to stay for the neighbours.
    """

    run: SavedRun
    links: dict[str, LinkState]
    round: int
    rank: int
    data: str
    result: dict[str, Any] | None

    @classmethod
    def decode(cls, about: Mapping[str, Any], arrays: Mapping[str, Any]) -> AgentState:
        """Return the encoded state; invalid content is a KeyError, ValueError or TypeError."""
        ends = np.cumsum([0, *about["sizes"]]).tolist()
        buffer = arrays["buffer"].tobytes()
        if len(buffer) != ends[-1] or about["version"] != _VERSION:
            raise ValueError(len(buffer))
        bodies = [buffer[start:end] for start, end in pairwise(ends)]
        links = {}
        for name, link in about["links"].items():
            sent = tuple(
                SentMessage(number, Kind(kind), (rows, columns), bool(is_bytes), bytes.fromhex(view), bodies[place])
                for number, kind, rows, columns, is_bytes, view, place in link["buffered"]
            )
            links[name] = LinkState(int(link["run_id"]), int(link["sent"]), int(link["received"]), sent)
        agent, *others = about["agents"]
        run = SavedRun.parse(arrays, [int(agent)], [int(other) for other in others])
        return cls(run, links, int(about["round"]), int(about["rank"]), str(about["data"]), about["result"])


def encode_state(
    snapshot: RoundSnapshot,
    agent: int,
    history: Arrays,
    links: Mapping[str, LinkState],
    about: Mapping[str, Any],
) -> tuple[dict[str, NDArray[Any]], dict[str, str], dict[str, int]]:
    """Return the arrays of a state, its labels, and the number of messages received from each neighbour so far."""
    degree = len(links)
    arrays: dict[str, NDArray[Any]] = dict(snapshot_arrays(snapshot, [agent], [degree], [np.array([0])], history))
    others = [sender for sender in snapshot.comm.own if sender != agent]
    for sender in others:
        arrays |= {f"agent/{sender}/comm/{name}": x for name, x in snapshot.comm.own[sender].items()}
    # A message to several neighbours has one body, which is written once.
    bodies: dict[int, tuple[int, bytes]] = {}
    encoded = {}
    for name, link in links.items():
        buffered = []
        for m in link.buffered:
            place, _ = bodies.setdefault(id(m.body), (len(bodies), m.body))
            buffered.append([m.number, int(m.kind), *m.shape, m.is_bytes, m.view.hex(), place])
        encoded[name] = {"run_id": link.run_id, "sent": link.sent, "received": link.received, "buffered": buffered}
    arrays["buffer"] = np.frombuffer(b"".join(body for _, body in bodies.values()), np.uint8)
    content = {
        **about,
        "version": _VERSION,
        "round": snapshot.report.round,
        "agents": [agent, *others],
        "links": encoded,
        "sizes": [len(body) for _, body in bodies.values()],
    }
    return arrays, {"about": json.dumps(content)}, {name: link.received for name, link in links.items()}
