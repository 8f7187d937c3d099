"""Federated averaging of one network: hidden layer and head are the same at all sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elmesh.solvers.network_averaging import NetworkAveraging

__all__ = ["FedAvgNetwork"]


@dataclass(repr=False, eq=False)
class FedAvgNetwork(NetworkAveraging):
    """Federated averaging (McMahan et al. 2017) of a network with one hidden layer, with all sites in every round.

    All sites have the same model, so columns of targets mean the same at all of them. The first site is the hub.

    Parameters
    ----------
    n_units : int, default=16
        Number of hidden units.
    step_size : float, default=0.1
        Length of the steps.
    momentum : float, default=0.9
        Share of the last step that the next one keeps, within a round.
    decay : float, default=0.0
        Weight decay: each step also shrinks the weights by ``step_size * decay``.
    local_steps : int, default=10
        Gradient steps of each site per round.
    max_iter : int, default=100
        Number of rounds. More are not always better: choose it on rows left out.
    message_bits : {2, 4, 8, 16, 32, 64, "auto"}, default=64
        Bits per number in messages to the hub and back, as for :class:`MeshELM`.

    Notes
    -----
    The hidden layer is trained, on top of the features of the estimator: ``n_hidden="auto"`` is none there, so that it
    takes the inputs. Of a site with more than 2,048 rows, a random sample of that size is used.

    Examples
    --------
    >>> import numpy as np
    >>> from elmesh import FedAvgNetwork, MultiTaskELMRegressor
    >>> X = np.linspace(-2, 2, 60)[:, None]
    >>> model = MultiTaskELMRegressor(solver=FedAvgNetwork(max_iter=30), random_state=0)
    >>> model.fit(X, np.abs(X[:, 0]), tasks=np.arange(60) % 3).score(X, np.abs(X[:, 0]), tasks=np.arange(60) % 3) > 0.9
    True
    """

    name: ClassVar[str] = "fed-avg-network"
    summary: ClassVar[str] = "a hub averages small neural networks after local steps (McMahan et al. 2017)"
    one_model: ClassVar[bool] = True
    private_heads: ClassVar[bool] = False
