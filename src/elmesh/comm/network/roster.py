"""The keys of all agents of a run, which they agree on before the first sum, and confirm after the last.

Every agent obtains the key bundles of all others along the spanning tree, verifies each by its certificate, and then
reveals its run number, to which its bundle has committed it. The digest of all of this is the *view* that every message
of a sum carries (:mod:`elmesh.comm.masking`), and each total is added to it. In the end every agent signs its view. An
agent whose parent has sent it other totals than others have cannot obtain the signatures of all: then no model is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from elmesh.comm.masking import MaskedSums, PairwiseMasks, commitment_of
from elmesh.comm.network.gather import TreeGather
from elmesh.comm.network.keys import MAX_BUNDLE_BYTES, Credentials, PublicKeys, RunKeys, open_bundle
from elmesh.comm.network.wire import WireError

__all__ = ["Roster", "agree_on_roster", "confirm_view"]

_SIGNATURE = 64


@dataclass(frozen=True)
class Roster:
    """The verified keys and the run numbers of all agents, in their order."""

    keys: tuple[PublicKeys, ...]
    numbers: tuple[bytes, ...]
    bundles: tuple[bytes, ...]

    @classmethod
    def verified(
        cls, bundles: Sequence[bytes], numbers: Sequence[bytes], network: bytes, credentials: Credentials
    ) -> Roster:
        """Return the roster of bundles and numbers; raise :class:`WireError` if one is not valid."""
        keys = tuple(open_bundle(bundle, network, credentials) for bundle in bundles)
        for other, number in zip(keys, numbers, strict=True):
            _check_number(other, number)
        _check_different(keys)
        return cls(keys, tuple(numbers), tuple(bundles))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all keys and run numbers."""
        content = b"".join(own.digest + number for own, number in zip(self.keys, self.numbers, strict=True))
        return hashlib.sha256(b"elmesh roster" + content).digest()

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the keys of all certificates, the same in every run, for people to compare."""
        content = b"".join(hashlib.sha256(own.name.encode() + own.certificate).digest() for own in self.keys)
        text = hashlib.sha256(content).hexdigest()[:32]
        return " ".join(text[k : k + 4] for k in range(0, len(text), 4))

    def masked_sums(self, me: int, keys: RunKeys, epoch: bytes) -> MaskedSums:
        """Return the masked sums of agent ``me`` while the agents of an epoch are evicted."""
        agreement = [own.agreement for own in self.keys]
        masks = PairwiseMasks.agree(me, keys.mask, agreement, self.numbers, self.digest + epoch)
        return MaskedSums(masks, self.digest)

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds of it; none of it is secret."""
        return {"bundles": [b.hex() for b in self.bundles], "numbers": [n.hex() for n in self.numbers]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], network: bytes, credentials: Credentials) -> Roster:
        """Return the roster of :meth:`to_json`, verified again."""
        bundles, numbers = ([bytes.fromhex(x) for x in content[name]] for name in ("bundles", "numbers"))
        return cls.verified(bundles, numbers, network, credentials)


def agree_on_roster(
    gather: TreeGather, names: Sequence[str], keys: RunKeys, bundle: bytes, network: bytes, credentials: Credentials
) -> Roster:
    """Exchange key bundles and then run numbers with all agents."""
    found: dict[str, PublicKeys] = {}

    def check_bundle(name: str, entry: bytes) -> None:
        own = open_bundle(entry, network, credentials)
        if own.name != name:
            raise WireError(f"the keys are those of {own.name}")
        found[name] = own
        _check_different(tuple(found.values()))

    bundles = gather.gather(bundle, MAX_BUNDLE_BYTES, check_bundle)
    # Nothing of a number is sent before all commitments are here.
    numbers = gather.gather(keys.mask.number, 32, lambda name, number: _check_number(found[name], number))
    return Roster(tuple(found[name] for name in names), tuple(numbers), tuple(bundles))


def confirm_view(gather: TreeGather, roster: Roster, keys: RunKeys, view: bytes) -> None:
    """Exchange signatures of the view with all agents; raise unless all have the same."""
    statement = b"elmesh confirms " + roster.digest + view
    by_name = {own.name: own for own in roster.keys}
    gather.gather(
        keys.signing.sign(statement),
        _SIGNATURE,
        lambda name, signature: by_name[name].check_signature(statement, signature),
    )


def _check_number(keys: PublicKeys, number: bytes) -> None:
    if len(number) != 32 or commitment_of(number) != keys.commitment:
        raise WireError(f"the run number of {keys.name} is not the one it has committed to")


def _check_different(keys: Sequence[PublicKeys]) -> None:
    """Raise if two agents have the same key, so that one could read the other's secrets."""
    for what in ("agreement", "signing", "certificate"):
        owners: dict[bytes, str] = {}
        for own in keys:
            other = owners.setdefault(getattr(own, what), own.name)
            if other != own.name:
                raise WireError(f"{other} and {own.name} have the same key")
