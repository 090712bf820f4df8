"""``python -m bench [NAME…]``: run every benchmark, or those named."""

import importlib
import sys

NAMES = ("page_parse", "web", "cycle", "startup")


def main() -> None:
    """Run each benchmark's ``main``; each prints its own figures."""
    for name in sys.argv[1:] or NAMES:
        print(f"--- {name}", flush=True)
        importlib.import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
