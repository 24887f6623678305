"""The command ``minitrans-diagnose``, also from a checkout that is not installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minitrans.cli.diagnose import main

if __name__ == "__main__":
    sys.exit(main())
