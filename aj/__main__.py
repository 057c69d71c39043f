"""`python -m aj`: the same as `aj`."""

import sys

from aj.client.main import main

sys.exit(main())
