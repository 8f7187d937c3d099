"""The dates on which something of an agent expires: its certificate, the authorities, the lists of revoked ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from elmesh.netconfig.identity import REVOKED, Identity

__all__ = ["EXPIRES_SOON", "Expiry", "expiries", "expiry_sentences"]

#: Days before its end from which on something is mentioned.
EXPIRES_SOON = 30
_REMEDIES = {
    "certificate": "renew it: elmesh network renew",
    "authority": "the keeper of the authority replaces it: elmesh network rotate",
    "revocations": "get a new one from the keeper of the authority: elmesh network revoke",
}
_NAMES = {
    "certificate": "The certificate of {agent}",
    "authority": "The certificate of the authority in {file}",
    "revocations": "The list of revoked certificates in {file}",
}


@dataclass(frozen=True)
class Expiry:
    """What expires, its file, and when."""

    what: Literal["certificate", "authority", "revocations"]
    file: Path
    until: datetime

    def seconds_left(self, now: datetime | None = None) -> float:
        """Return the number of seconds until it expires, negative afterwards."""
        return (self.until - (now or datetime.now(UTC))).total_seconds()

    def sentence(self, agent: str, now: datetime | None = None) -> str | None:
        """Return a sentence for those who operate the agent, None while there is time."""
        days = self.seconds_left(now) / 86400.0
        if days >= EXPIRES_SOON:
            return None
        name = _NAMES[self.what].format(agent=agent, file=self.file.name)
        when = (
            f"expired on {self.until:%Y-%m-%d}" if days < 0 else f"expires in {days:.0f} days, on {self.until:%Y-%m-%d}"
        )
        return f"{name} {when}; {_REMEDIES[self.what]}."


def expiries(identity: Identity) -> list[Expiry]:
    """Return all dates of an agent, as its files are now, without a check of any."""
    identity = replace(identity)  # which has read no file yet
    found = [Expiry("certificate", identity.certificate, identity.valid_until)]
    found += [Expiry("authority", identity.authority, one.not_valid_after_utc) for one in identity.authorities]
    due = identity.revocations.next_update
    return found if due is None else [*found, Expiry("revocations", identity.folder / REVOKED, due)]


def expiry_sentences(identity: Identity, now: datetime | None = None) -> list[str]:
    """Return a sentence on everything that expires soon, or has."""
    return [text for one in expiries(identity) if (text := one.sentence(identity.name, now)) is not None]
