"""python -m oars.keeper DIRECTORY"""

from __future__ import annotations

import os
import sys

from oars.keeper.main import main

sys.exit(main(sys.argv[1], os.environ))
