"""A few checks of the kernels that are named."""

import json
import sys

from tests.engine.interpreted import (
    chains,
    graphs,
    hashing,
    indices,
    integers,
    interpreting,
    operands,
    ran_by,
    sums,
    workers,
)

SUITES = {
    "sums": sums,
    "operands": operands,
    "chains": chains,
    "indices": indices,
    "hashing": hashing,
    "graphs": graphs,
    "integers": integers,
    "workers": workers,
}

with interpreting():
    found = {name: ran_by(SUITES[name].SUITE.fast) for name in sys.argv[1:]}
sys.stdout.write(json.dumps(found) + "\n")
