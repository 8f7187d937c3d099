"""A site's table: read, checked against the network file, and encoded as the network file declares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from elmesh.errors import ElmeshError
from elmesh.tables import FILE_TASK, find_column, finite_numbers, read_table
from elmesh.typing import FloatArray, StrPath

if TYPE_CHECKING:
    from elmesh.netconfig.config import NetworkConfig

# Of a usual range, so many values may lie outside without a remark.
_MOST_OUTSIDE = 0.2

__all__ = ["exchange_caution", "load_table", "present_values", "table_cautions", "table_digest"]


def load_table(data: StrPath | pd.DataFrame, config: NetworkConfig, agent: str, target: Sequence[str]) -> pd.DataFrame:
    """Return a site's rows, all of its own task; raise if columns are missing or there are too many rows."""
    frame = data if isinstance(data, pd.DataFrame) else read_table(Path(data))
    for name in (*target, *(column.name for column in config.columns)):
        find_column(frame, name)
    if len(frame) > config.most_rows:
        raise ElmeshError(
            f"The table has {len(frame):,} rows, but the network file declares at most {config.most_rows:,}; "
            "neighbours would refuse its messages. Raise most_rows at every site."
        )
    return frame.assign(**{FILE_TASK: agent})


def table_digest(frame: pd.DataFrame) -> str:
    """Return a digest of a table's rows, with the names of its columns."""
    names = json.dumps([str(name) for name in frame.columns]).encode()
    return hashlib.sha256(names + pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes()).hexdigest()


_SHARED_CAUTION = (
    "Caution: with a shared part (rank other than 0) many sums are exchanged, and a site that sends what it pleases "
    "can steer them so that totals reveal the parts of single sites; with rank = 0 few sums are exchanged. See "
    "docs/security.md."
)


def exchange_caution(config: NetworkConfig) -> str | None:
    """Return the caution about what agents exchange, which is shown even with ``--quiet``; None if there is none."""
    if config.exchange == "sums":
        return None if config.rank == 0 or config.epsilon is not None else _SHARED_CAUTION
    return (
        'Caution: with exchange = "basis" U_t is sent as it is, and a neighbour that tries can reconstruct rows and '
        'labels from it; masked sums (exchange = "sums") reveal the totals of all sites alone. See docs/security.md.'
    )


def table_cautions(frame: pd.DataFrame, config: NetworkConfig) -> Iterator[str]:
    """Yield what the officer of a site should know about unexpected values."""
    for column in config.columns:
        if not column.is_numeric:
            continue
        values = finite_numbers(frame, column.name)
        missing = int(np.isnan(values).sum())
        if column.range is not None:
            low, high = column.range
            outside = int(np.sum((values < low) | (values > high)))
            if outside > _MOST_OUTSIDE * len(values):
                yield (
                    f'Column "{column.name}": {outside} of {len(values)} values are outside the range {low:g} to '
                    f"{high:g} that the network file declares as usual; they are used as they are, up to three times "
                    "as far from its middle."
                )
        if missing and not column.missing:
            yield (
                f'Column "{column.name}": {missing} of {len(values)} values are missing, although the network file '
                "declares none; they are replaced by the middle of the range."
            )


def present_values(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, FloatArray]:
    """Return the values of each column that are not missing."""
    values = {name: finite_numbers(frame, name) for name in columns}
    return {name: x[~np.isnan(x)] for name, x in values.items()}
