"""`python -m lmgym` is the `lmgym` program."""

from lmgym.commands.cli import main

main()
