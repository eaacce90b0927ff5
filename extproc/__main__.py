"""The command `forebay`, and `python -m extproc`. An interrupt while loading is no traceback."""

import sys


def main() -> None:
    try:
        from extproc.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
