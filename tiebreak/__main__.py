"""`python -m tiebreak`: the command line, where the console script is not on PATH."""

from tiebreak.cli.main import main

main()
