"""``python -m kvheadroom`` and the ``kvheadroom`` command."""

import os
import sys


def main() -> None:
    """Run the command line; never returns."""
    # vLLM sets this for its own processes. Inherited (same container, same unit file), it would
    # switch the client library to files in vLLM's folder, so it is dropped before any import.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    os.environ.pop("prometheus_multiproc_dir", None)

    from kvheadroom.cli import run  # noqa: PLC0415  (after the environment is clean)
    from kvheadroom.own_words import hide_credentials  # noqa: PLC0415

    hide_credentials()
    sys.exit(run())


if __name__ == "__main__":
    main()
