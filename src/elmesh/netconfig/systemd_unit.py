"""A systemd unit that runs an agent, or a router, with as few rights as it needs.

The process can write only where its log, its checkpoint and its model are. systemd hands it the private key as a
credential (``LoadCredential``), so that the key file itself can belong to root and is not visible to the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elmesh.errors import ElmeshError
from elmesh.netconfig.identity import Identity
from elmesh.netconfig.names import ROUTER

__all__ = ["ServiceUnit"]

_HARDENING = """\
# Few rights: no capabilities, no devices, no other users' processes, a read-only system.
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
UMask=0077
ProtectSystem=strict
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
PrivateIPC=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
# TLS over IP; netlink to list the addresses of this machine; local sockets for threads of one process.
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
Environment=PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib
"""
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108  (to refuse them)
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))


@dataclass(frozen=True)
class ServiceUnit:
    """A service of one agent or router.

    ``command`` is what it runs, ``writable`` where the model is written, and ``reads`` other files it reads.
    """

    identity: Identity
    agent_file: Path
    command: Sequence[str]
    user: str
    writable: Sequence[Path] = ()
    reads: Sequence[Path] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", self.user):
            raise ElmeshError(f"The user is {self.user!r}; expected the name of a system user, such as elmesh.")
        for path in self._paths:
            if any(path.is_relative_to(folder) for folder in _TEMPORARY):
                raise ElmeshError(f"{path} is in a temporary folder, of which a service has its own; move it first.")

    @property
    def name(self) -> str:
        """The name of the unit, without its suffix."""
        return f"elmesh-{self.identity.config.name}-{self.identity.name}"

    @property
    def _paths(self) -> list[Path]:
        return [self.identity.folder, *self._read_write, *(path.absolute() for path in self.reads)]

    @property
    def has_hidden_program(self) -> bool:
        """Whether the program is in a temporary folder, where the service would not find it."""
        return any(Path(self.command[0]).is_relative_to(folder) for folder in _TEMPORARY)

    @property
    def _read_write(self) -> list[Path]:
        """The folders to write to, without those inside others."""
        identity = self.identity
        own = () if identity.name == ROUTER else (identity.log.parent, identity.state.parent)
        wanted = sorted({*own, *(path.absolute().parent for path in self.writable)})
        return [path for path in wanted if not any(path.is_relative_to(other) for other in wanted if other != path)]

    def text(self) -> str:
        """Return the unit."""
        identity, paths = self.identity, self._paths
        at_home = any(path.is_relative_to(home) for path in paths for home in _HOMES)
        fixed = [self.agent_file.absolute(), *([identity.gate] if identity.gate.exists() else [])]
        router = identity.name == ROUTER
        lines = [
            f"# {self.name}.service",
            "[Unit]",
            f"Description=elmesh {'router' if router else f'agent {identity.name}'} of {identity.config.name}",
            "Wants=network-online.target",
            "After=network-online.target",
            "StartLimitIntervalSec=1h",
            "StartLimitBurst=20",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(map(_quoted, self.command))}",
            f"User={self.user}",
            "# A run that was interrupted resumes. Exit codes 2 and 4 need a person; 130 is a stop by SIGTERM.",
            f"Restart={'always' if router else 'on-failure'}",
            "RestartSec=30s",
            "RestartPreventExitStatus=2 4",
            "SuccessExitStatus=130",
            "TimeoutStopSec=60s",
            "# The key file may belong to root with mode 0600; only this service is given its content.",
            f"LoadCredential={identity.key.name}:{_path(identity.key)}",
            f"InaccessiblePaths=-{_path(identity.key)}",
            *(f"ReadWritePaths={_path(path)}" for path in self._read_write),
            *(f"ReadOnlyPaths={_path(path)}" for path in fixed),
            f"ProtectHome={'read-only' if at_home else 'yes'}",
            _HARDENING,
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
        return "\n".join(lines)


def _quoted(word: str) -> str:
    """Return a word of a command as systemd reads it."""
    if not word.isprintable():
        raise ElmeshError(f"{word!r} cannot be in a unit: it has characters that cannot be printed.")
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w@%$+=:,./-]+", word, re.ASCII):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _path(path: Path) -> str:
    """Return a path as systemd reads it."""
    text = str(path)
    if not text.isprintable() or re.search(r'[\s"\'\\:]', text):
        raise ElmeshError(f"{path} has a space, a quote, a colon or a backslash in it, which a unit cannot name.")
    return text.replace("%", "%%")
