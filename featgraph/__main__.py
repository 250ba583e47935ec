"""``python -m featgraph`` is ``featgraph``."""

import sys

from featgraph.cli import main

sys.exit(main())
