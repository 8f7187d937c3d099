r"""A network with one hidden layer, of many sites at once: its loss and its gradient.

Site t maps rows :math:`\Phi_t` to

.. math:: F_t = [1, Z_t]\, C_t , \qquad Z_t = \tanh(\Phi_t B_t) ,

with hidden weights :math:`B_t` (p x h) and output weights, the head, :math:`C_t` ((1 + h) x d). Its loss is the mean
over rows of half the squared error or, if targets are indicators of classes, of the log loss of a softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from elmesh.math.random_effects import SiteBatch
from elmesh.typing import FloatArray, IndexArray

__all__ = ["NetworkRows", "feature_units", "network_loss"]


@dataclass(frozen=True, eq=False)
class NetworkRows:
    """Rows of m sites, padded to the same number n.

    Parameters
    ----------
    index : ndarray of int of shape (m,)
        Their places among all sites.
    Phi : ndarray of shape (m, n, p)
        Features.
    T : ndarray of shape (m, n, d)
        Targets.
    share : ndarray of shape (m, n, 1)
        The weight of each row, as a share of those of its site; zero for padding.
    n_rows : ndarray of shape (m,)
        The sum of the weights of each site's rows.
    columns : ndarray of bool of shape (m, 1, d)
        Which columns of the targets a site has.
    constant : bool
        Whether the head has a constant.
    classes : bool
        Whether targets are indicators of classes.
    """

    index: IndexArray
    Phi: FloatArray
    T: FloatArray
    share: FloatArray
    n_rows: FloatArray
    columns: NDArray[np.bool_]
    constant: bool
    classes: bool

    @classmethod
    def from_batch(cls, batch: SiteBatch, outputs: IndexArray, *, classes: bool) -> NetworkRows:
        """Return the rows of a batch of sites that are not reduced; ``outputs`` are the sites' numbers of columns."""
        w = batch.weights[..., None]
        # Rows of a batch are multiplied by the root of their weight.
        root, total = np.sqrt(np.where(w > 0, w, 1.0)), w.sum(axis=1, keepdims=True)
        return cls(
            batch.index,
            batch.Phi * feature_units(batch.groups) / root,
            batch.T / root,
            w / total,
            total[:, 0, 0],
            np.arange(batch.T.shape[-1]) < outputs[:, None, None],
            bool(np.any(batch.groups == 0)),
            classes,
        )


def feature_units(groups: IndexArray) -> FloatArray:
    """Return what features in groups are multiplied by to be of order one: each was divided by the root of its width.

    Examples
    --------
    >>> feature_units(np.array([0, 1, 1, 1, 1]))
    array([1., 2., 2., 2., 2.])
    """
    return np.asarray(np.sqrt(np.bincount(groups))[groups])


def network_loss(rows: NetworkRows, B: FloatArray, C: FloatArray) -> tuple[FloatArray, tuple[FloatArray, FloatArray]]:
    """Return the loss of each site, of shape (m,), and its gradient in B (m, p, h) and in C (m, 1 + h, d)."""
    k = int(rows.constant)
    Z = np.tanh(rows.Phi @ B)
    F = Z @ C[:, k:] + (C[:, :1] if rows.constant else 0.0)
    if rows.classes:
        F = np.where(rows.columns, F, -np.inf)
        log_share = np.where(rows.columns, log_softmax(F, axis=-1), 0.0)
        loss = -np.sum(rows.T * log_share, axis=-1, keepdims=True)
        E = softmax(F, axis=-1) - rows.T
    else:
        E = np.where(rows.columns, F - rows.T, 0.0)
        loss = 0.5 * np.sum(E**2, axis=-1, keepdims=True)
    E = rows.share * E
    back = (E @ C[:, k:].mT) * (1.0 - Z**2)
    head = Z.mT @ E
    if rows.constant:
        head = np.concatenate([E.sum(axis=1, keepdims=True), head], axis=1)
    return np.sum(rows.share * loss, axis=(1, 2)), (rows.Phi.mT @ back, head)
