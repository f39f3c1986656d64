"""What calls answer: values that do not change, with a `repr` worth reading.

Names of states and kinds are those of the contract in lower case. `UNKNOWN` stands for one that this version does not
know, and for "unspecified".
"""

from .execs import *  # noqa: F403
from .files import *  # noqa: F403
from .sandboxes import *  # noqa: F403
