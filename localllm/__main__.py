"""The `localllm` command, and `python -m localllm`."""

import sys


def main() -> int:
    """Runs the command line of this process. A Ctrl-C before it can handle one ends it quietly."""
    try:
        from localllm.cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
