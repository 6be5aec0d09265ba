"""Checks for clipping styles, freezers and gradient rules of your own.

Each check runs a class through what its contract asks for, and through real steps that are compared with a slow and
obvious computation. It returns nothing if all is well, and raises `ContractBroken` otherwise, whose message lists what
was found and how to mend it. No test framework is needed.
"""

from hoarfrost.errors import ContractBroken as ContractBroken
from hoarfrost.testing.clippers import check_clipper as check_clipper
from hoarfrost.testing.freezers import check_freezer as check_freezer
from hoarfrost.testing.rules import check_rule as check_rule
