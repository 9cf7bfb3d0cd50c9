"""Errors of the lab.

LabError
├── Unavailable   this machine cannot run the lab: tests that need it fail
├── Ended         a component exited
└── Timeout       a condition did not become true before its deadline
"""


class LabError(Exception):
    """The lab could not perform an operation."""


class Unavailable(LabError):
    """This machine cannot run the lab; the message says what is missing."""


class Timeout(LabError):
    """A condition did not become true in time; the message names it."""


class Ended(LabError):
    """A component exited."""
