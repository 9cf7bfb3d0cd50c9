"""Names of members. Deterministic: the same cluster always has the same names."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from oars.model import HEAD, Group, MemberId, Role


def member_ids(group: Group, count: int, taken: Collection[MemberId] = ()) -> list[MemberId]:
    """The first `count` ids that are not taken: worker-0 for the default group, gpu-0 for the group gpu."""
    if group.role is Role.HEAD:
        return [HEAD][:count]
    prefix = "worker" if group.name == "default" else group.name
    candidates = (MemberId(f"{prefix}-{number}") for number in itertools.count())
    return list(itertools.islice((each for each in candidates if each not in taken), count))


def index(member: MemberId) -> int:
    """The number at the end of an id; 0 if it does not end in one."""
    number = member.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
