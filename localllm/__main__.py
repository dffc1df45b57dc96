"""`python -m localllm`: the same as the `localllm` command."""

import sys

from localllm.cli.main import main

sys.exit(main())
