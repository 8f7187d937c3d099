"""One agent of the benchmark of masked sums: sums without masks, with masks, and as a run makes them, in turns."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from elmesh.agent import NetworkAgent
from elmesh.agent.backend import NetworkBackend
from elmesh.agent.limits import max_norm
from elmesh.comm.network.transport import NetworkTransport
from elmesh.comm.requests import IntegerSum, Topic
from elmesh.netconfig.identity import Identity


def main(file: str, options: str) -> None:
    settings = json.loads(options)
    identity = Identity.read(file)
    config, number = identity.config, identity.config.index(identity.name)
    request = IntegerSum(np.random.default_rng(number).integers(-(2**40), 2**40, settings["numbers"]), Topic.MATRIX)
    taken: dict[str, list[float]] = {"plain": [], "masked": [], "released": []}
    with NetworkAgent(identity, patience=60, fresh=True, release_again=True) as agent:
        agent.open({})
        common = agent.messenger, config.agent_names, config.topology, 64, max_norm(config)
        transports = {
            "plain": NetworkTransport(*common),
            "masked": NetworkTransport(*common, agent.masked_sums()),
            # With all that a run adds: on disk and in the log before it is sent.
            "released": NetworkBackend(agent).transport(),
        }
        for turn in range(settings["repeats"] + 1):
            for kind, transport in transports.items():
                begin = time.perf_counter()
                for _ in range(settings["sums"]):
                    transport.integer_sum(request)
                if turn:  # the first turn is a warm-up
                    taken[kind].append((time.perf_counter() - begin) / settings["sums"])
        Path(settings["out"], f"{identity.name}.json").write_text(json.dumps(taken))
        agent.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
