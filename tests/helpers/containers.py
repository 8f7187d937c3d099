"""Real containers: an image that is built from deploy/Containerfile, and commands in it, by podman as root.

The base image is made from packages of Debian (mmdebstrap), so that no registry of images is needed. What the build
downloads comes from where this machine's apt looks, and from pip's index.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "Containerfile"
BASE, IMAGE = "docker.io/library/debian:bookworm-slim", "localhost/elmesh"
PROGRAMS = ("podman", "runc", "mmdebstrap")
#: As the documentation runs the image: only /tmp and what is mounted can be written, and no right can be gained.
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=all", "--security-opt=no-new-privileges")


def missing() -> str:
    """Return why no container can run here; empty if it can."""
    if os.geteuid() != 0:
        return "only root runs containers here"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Podman:
    """Images and containers in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
        self.command = ["podman", *store, "--runtime", "runc", "--cgroup-manager", "cgroupfs"]

    def __call__(self, *words: str, timeout: float = 1800.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
        )

    def worked(self, *words: str, timeout: float = 1800.0) -> str:
        done = self(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def build(self) -> None:
        """Build the image as the documentation does, on a base that is made here."""
        base = self.folder / "base.tar"
        sources = sorted(map(str, Path("/etc/apt/sources.list.d").glob("debian*")))
        made = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(base), *sources],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr[-3000:]
        self.worked("import", "--quiet", str(base), BASE)
        base.unlink()
        volumes = ["/etc/apt/sources.list.d:/etc/apt/sources.list.d:ro", "/etc/ssl/certs:/host/certs:ro"]
        settings = self.folder / "pip.conf"
        settings.write_text("[global]\ncert = /host/certs/ca-certificates.crt\n")
        volumes.append(f"{settings}:/etc/pip.conf:ro")
        mounts = [word for volume in volumes for word in ("--volume", volume)]
        self.worked(
            "build", "--isolation", "chroot", "--pull=never", *mounts, "--file", str(FILE), "--tag", IMAGE, str(ROOT)
        )

    def run_words(self, *options: str) -> list[str]:
        """Return the words with which a hardened container starts, up to the name of the image."""
        limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        most = {name: min(resource.getrlimit(which)[1] % 2**63, 1024) for name, which in limits.items()}
        ulimits = [word for name, n in most.items() for word in ("--ulimit", f"{name}={n}:{n}")]
        return ["run", "--rm", "--network", "host", *HARDENED, *ulimits, *options, IMAGE]

    def close(self) -> None:
        """End what still runs, and remove everything."""
        self("rm", "--force", "--all", "--time", "0")
        self("rmi", "--force", "--all")
