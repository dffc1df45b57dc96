"""The command line as a program, with stand-ins where the environment asks for them.

TEST_FAKE_SESSION=1 replaces the session; TEST_CATALOG=folder replaces the catalogue.
"""

import os
import sys
from pathlib import Path

from localllm.cli.main import main

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if os.environ.get("TEST_FAKE_SESSION"):
    from stand_ins import fake_session

    sys.modules["localllm.session"] = fake_session
if folder := os.environ.get("TEST_CATALOG"):
    from localllm.store import catalog

    catalog.folder = lambda: Path(folder)
sys.exit(main())
