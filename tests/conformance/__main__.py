"""What a server holds of its protocol: `python tests/conformance --help`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # in which this folder is the package `conformance`

from conformance.verbs import main  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    main()
