"""``python -m bench [NAME…]``: run all benchmarks, or those named; exit 1 on a missed limit."""

import importlib
import sys

from bench.figures import Figure

NAMES = ("page_parse", "web", "cycle", "startup", "capacity", "discovery")


def main() -> int:
    """Print each benchmark's figures as they come; return the exit status."""
    missed: list[Figure] = []
    for name in sys.argv[1:] or NAMES:
        print(f"--- {name}", flush=True)
        for figure in importlib.import_module(f"bench.{name}").figures():
            print(figure, flush=True)
            missed += [] if figure.holds else [figure]
    if missed:
        print(f"{len(missed)} beyond their limit:", *missed, sep="\n", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
