"""What can go wrong, each with a sentence a person can act on.

LabError
├── Unavailable   this machine cannot run the lab at all: tests skip (or fail, with CI set)
├── Ended         a component is no more
└── Timeout       something was started and did not become ready before its deadline
"""


class LabError(Exception):
    """The lab could not do what was asked."""


class Unavailable(LabError):
    """This machine cannot run the lab; the message says what is missing."""


class Timeout(LabError):
    """A wait ran into its deadline; the message says what was waited for."""


class Ended(LabError):
    """A component is no more."""
