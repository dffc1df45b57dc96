"""The command line as a program, with stand-ins where the environment asks for them.

TEST_FAKE_SESSION=1 replaces the session with fake_session.py, another value with the module of that
name here; TEST_CATALOG=folder replaces the catalogue.
"""

import importlib
import os
import sys
from pathlib import Path

from localllm.cli import main as program

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Puts the stand-ins in their places, then runs the command line."""
    if name := os.environ.get("TEST_FAKE_SESSION"):
        module = "fake_session" if name == "1" else name
        sys.modules["localllm.session"] = importlib.import_module(f"stand_ins.{module}")
    if folder := os.environ.get("TEST_CATALOG"):
        from localllm.store import catalog

        catalog.folder = lambda: Path(folder)
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
