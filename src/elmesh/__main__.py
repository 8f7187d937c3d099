"""``python -m elmesh`` is the command ``elmesh``."""

from elmesh.cli import main

if __name__ == "__main__":
    main()
