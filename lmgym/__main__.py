"""`python -m lmgym` is the `lmgym` program."""

from lmgym.cli import main

main()
