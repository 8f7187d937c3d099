"""Federated averaging with personal heads: the hidden layer is common, the output layer is each site's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from elmesh.solvers.network_averaging import NetworkAveraging

__all__ = ["FedPer"]


@dataclass(repr=False, eq=False)
class FedPer(NetworkAveraging):
    """Federated averaging of a hidden layer, with a head of each site's own that is never sent.

    The method of Arivazhagan et al. (2019), for a network with one hidden layer. Sites may differ in classes and in
    columns of targets. The first site is the hub.

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
    >>> from elmesh import FedPer, MultiTaskELMRegressor
    >>> X, site = np.linspace(-2, 2, 60)[:, None], np.arange(60) % 3
    >>> y = np.array([1.0, -1.0, 0.5])[site] * np.abs(X[:, 0])
    >>> model = MultiTaskELMRegressor(solver=FedPer(max_iter=30), random_state=0).fit(X, y, tasks=site)
    >>> model.score(X, y, tasks=site) > 0.9
    True
    """

    name: ClassVar[str] = "fed-per"
    summary: ClassVar[str] = "a hub averages hidden layers, sites keep their heads (Arivazhagan et al. 2019)"
    private_heads: ClassVar[bool] = True
