"""`python -m adapter.cli`, for where the installed script is not on the path."""

from __future__ import annotations

import sys

from adapter.cli.main import main

sys.exit(main())
