"""A few checks of the kernels that are named."""

import json
import sys
from importlib import import_module

from tests.engine.interpreted import interpreting, ran_by

with interpreting():
    found = {name: ran_by(import_module(f"tests.engine.interpreted.{name}").SUITE.fast) for name in sys.argv[1:]}
sys.stdout.write(json.dumps(found) + "\n")
