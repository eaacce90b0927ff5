"""The command `forebay`, and `python -m extproc`. An interrupt while loading is no traceback."""

import sys


def main() -> None:
    try:
        if sys.argv[1:2] == ["sim"]:
            # Started in numbers, by `up` and by tests: without what the other commands load.
            from serving.cli import app as sim

            sim(sys.argv[2:], prog_name="forebay sim")
        from extproc.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
