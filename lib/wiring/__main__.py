"""`python -m wiring`: the command line."""

from wiring.cli.app import main

if __name__ == "__main__":
    main()
