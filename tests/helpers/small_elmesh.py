"""The command ``elmesh`` with short experiments; the processes that it starts read this file again."""

from __future__ import annotations

from elmesh.paper import fig3

fig3.ROUNDS = 40

if __name__ == "__main__":
    from elmesh.cli import main

    main()
