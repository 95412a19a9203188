"""`python -m segue`: the command `segue`, also where its script is not on the path."""

import sys

from segue.cli import main

if __name__ == "__main__":
    sys.exit(main())
