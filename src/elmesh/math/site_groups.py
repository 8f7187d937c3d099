r"""How sites group, given the distances between them: a map, and groups only where distances show some.

Classical multidimensional scaling places sites so that distances on the map are close to those given. With the double
centred squares :math:`B = -\frac12 J D^{\circ 2} J` and its eigenvalues :math:`\lambda_k` and eigenvectors
:math:`q_k`, coordinate k of a site is :math:`\sqrt{\lambda_k}\,q_k`; Euclidean distances in a plane are exact.

Any cloud of points can be divided, and the silhouette of a long cloud is high when it is. So groups of Ward's tree
count only if their mean silhouette (Rousseeuw 1987) is at least one half, and higher than in 99 simulated clouds that
have no groups: as many points with independent coordinates, of the same variances as those of the sites; every other
cloud is uniform, and the others have the skewness of the sites' coordinates too. A few sites that differ are no second
group: at least two groups have a tenth of the sites each, and two sites at least.
"""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from scipy.stats import pearson3, skew

from elmesh.typing import FloatArray, IndexArray

__all__ = ["classical_scaling", "find_groups"]

# Most groups, and fewest sites of which groups are looked for.
_MOST_GROUPS, _FEWEST = 8, 4
# Least mean silhouette: 0.5 is "a reasonable structure" of Kaufman and Rousseeuw (1990).
_LEAST = 0.5
_CLOUDS = 99
# Skewness of a cloud, up to that of the exponential distribution.
_MOST_SKEW = 2.0
# Least share of the sites that the second largest group has.
_LEAST_SHARE = 0.1
# Eigenvalues below this share of the largest are rounding errors.
_ZERO = 1e-9


def classical_scaling(D: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return coordinates of points, one column per dimension, and their sums of squares, the largest first.

    The largest coordinate of a column is positive, so that the same distances give the same map.

    Examples
    --------
    >>> coordinates, squares = classical_scaling(np.array([[0.0, 2.0], [2.0, 0.0]]))
    >>> coordinates.ravel(), squares
    (array([ 1., -1.]), array([2.]))
    """
    B = -0.5 * D**2
    B = B - B.mean(axis=0)
    values, vectors = np.linalg.eigh(B - B.mean(axis=1, keepdims=True))
    kept = np.flatnonzero(values > _ZERO * max(values[-1], 0.0))[::-1]
    coordinates = vectors[:, kept] * np.sqrt(values[kept])
    # A tie between equal coordinates of opposite sign must not be decided by rounding.
    largest = np.argmax(np.abs(coordinates) > (1 - _ZERO) * np.abs(coordinates).max(axis=0, initial=0.0), axis=0)
    return coordinates * np.where(coordinates[largest, np.arange(len(kept))] < 0, -1.0, 1.0), values[kept]


def find_groups(D: FloatArray, seed: int) -> IndexArray | None:
    """Return the group of each site, numbered from 0 in the order of the sites; None if there are no groups."""
    silhouette, groups = _divide(D)
    if silhouette < _LEAST:
        return None
    coordinates, squares = classical_scaling(D)
    rng, skewness = np.random.default_rng(seed), np.clip(skew(coordinates), -_MOST_SKEW, _MOST_SKEW)
    for k in range(_CLOUDS):
        uniform = rng.uniform(-np.sqrt(3), np.sqrt(3), coordinates.shape)
        cloud = pearson3.rvs(skewness, size=coordinates.shape, random_state=rng) if k % 2 else uniform
        if _divide(squareform(pdist(cloud * np.sqrt(squares))))[0] >= silhouette:
            return None
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse], dtype=np.intp)


def _divide(D: FloatArray) -> tuple[float, IndexArray]:
    """Return the best division by Ward's tree, and its mean silhouette; -1 if there is none."""
    best, found = -1.0, np.zeros(len(D), dtype=np.intp)
    if len(D) < _FEWEST:
        return best, found
    tree = linkage(squareform(D, checks=False), "ward")
    for k in range(2, min(_MOST_GROUPS, len(D) // 2) + 1):
        groups = np.asarray(fcluster(tree, k, "maxclust"), dtype=np.intp) - 1
        sizes = np.bincount(groups)
        if np.sum(sizes >= max(2, _LEAST_SHARE * len(D))) > 1 and (silhouette := _silhouette(D, groups, sizes)) > best:
            best, found = silhouette, groups
    return best, found


def _silhouette(D: FloatArray, groups: IndexArray, sizes: IndexArray) -> float:
    """Return the mean of (b - a) / max(a, b): mean distances a to the own group, and b to the nearest other one."""
    rows = np.arange(len(D))
    totals = D @ np.eye(len(sizes))[groups]
    a = totals[rows, groups] / np.maximum(sizes[groups] - 1, 1)
    means = totals / sizes
    means[rows, groups] = np.inf
    b = means.min(axis=1)
    single = sizes[groups] == 1
    return float(np.mean(np.where(single, 0.0, (b - a) / np.maximum(np.maximum(a, b), np.finfo(float).tiny))))
