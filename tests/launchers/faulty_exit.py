"""A script whose end is not kept from those who import it."""

import sys

sys.exit(3)
