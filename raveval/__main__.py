"""`python -m raveval` is the command line."""

from raveval.cli import main

if __name__ == "__main__":
    main()
