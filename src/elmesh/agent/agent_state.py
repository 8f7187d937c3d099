"""One entry of a journal: what an agent goes on from, as arrays and a few words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmesh.comm.network.edge_queue import Said
from elmesh.comm.network.peer import Stand
from elmesh.comm.network.wire import Kind
from elmesh.comm.requests import Kept
from elmesh.run.array_io import below, past_of
from elmesh.run.base import Mark, Moment, Past
from elmesh.typing import FloatArray

__all__ = ["VERSION", "Entry", "arrays_of", "entry_of"]


VERSION = 2


@dataclass(frozen=True, eq=False)
class Entry:
    """What the journal holds: where the algorithm goes on, the link, the rounds so far, and the post.

    ``saved`` is what there is to say of the model, once it is saved: then nothing is left to do but to stay.
    """

    kept: Kept
    link: Mark
    past: Past
    stands: dict[str, Stand]
    round: int
    rank: int
    data: str
    saved: dict[str, Any] | None


def arrays_of(
    moment: Moment, past: Mapping[str, FloatArray], stands: Mapping[str, Stand], beside: Mapping[str, Any]
) -> tuple[dict[str, NDArray[Any]], dict[str, str], dict[str, int]]:
    """Name all arrays of an entry, say in JSON what is no array, and how much was heard of each neighbour by then."""
    (kept,) = moment.report.kept
    arrays: dict[str, NDArray[Any]] = {f"own/{name}": x for name, x in kept.own.items()}
    arrays |= {f"common/{name}": x for name, x in kept.common.items()}
    arrays |= {f"edges/{name}": x for name, x in kept.edges.items()}
    arrays |= {f"past/{name}": x for name, x in past.items()}
    arrays |= {f"link/{name}": x for name, x in moment.mark.common.items()}
    for agent, own in moment.mark.own.items():
        arrays |= {f"link of {agent}/{name}": x for name, x in own.items()}
    # What was said to several neighbours is one and the same, and written once.
    bodies: dict[int, tuple[int, bytes]] = {}
    edges = {}
    for name, stand in stands.items():
        said = []
        for m in stand.kept:
            place, _ = bodies.setdefault(id(m.body), (len(bodies), m.body))
            said.append([m.number, int(m.kind), *m.shape, m.coarse, place])
        edges[name] = {"life": stand.life, "said": stand.said, "heard": stand.heard, "kept": said}
    arrays["said"] = np.frombuffer(b"".join(body for _, body in bodies.values()), np.uint8)
    sizes = [len(body) for _, body in bodies.values()]
    about = {**beside, "version": VERSION, "round": moment.report.round, "edges": edges, "sizes": sizes}
    return arrays, {"about": json.dumps(about)}, {name: stand.heard for name, stand in stands.items()}


def entry_of(about: Mapping[str, Any], arrays: Mapping[str, Any]) -> Entry:
    """Return the entry that was written; whatever is not as it was is an error of Python's own."""
    ends = np.cumsum([0, *about["sizes"]]).tolist()
    whole = arrays["said"].tobytes()
    if len(whole) != ends[-1] or about["version"] != VERSION:
        raise ValueError(len(whole))
    bodies = [whole[start:end] for start, end in pairwise(ends)]
    stands = {}
    for name, edge in about["edges"].items():
        said = tuple(
            Said(number, Kind(kind), (rows, columns), bool(coarse), bodies[place])
            for number, kind, rows, columns, coarse, place in edge["kept"]
        )
        stands[name] = Stand(int(edge["life"]), int(edge["said"]), int(edge["heard"]), said)
    heads = {name.partition("/")[0] for name in arrays}
    own = {int(head.removeprefix("link of ")): below(head, arrays) for head in heads if head.startswith("link of ")}
    kept = Kept(below("own", arrays), below("common", arrays), below("edges", arrays))
    return Entry(
        kept,
        Mark(own, below("link", arrays)),
        past_of(below("past", arrays)),
        stands,
        int(about["round"]),
        int(about["rank"]),
        str(about["data"]),
        about["saved"],
    )
