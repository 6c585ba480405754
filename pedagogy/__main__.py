"""`python -m pedagogy` is the command `pedagogy`."""

import sys

from pedagogy.cli import main

sys.exit(main())
