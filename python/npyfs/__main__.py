"""`python -m npyfs ARGUMENTS`: the program npyfs itself."""

import os
import sys

from ._program import Error, program


def main() -> None:
    """Becomes the program."""
    try:
        path = program()
    except Error as error:
        sys.exit(f"npyfs: {error}")
    os.execv(path, ["npyfs", *sys.argv[1:]])


if __name__ == "__main__":
    main()
