"""Names of members. Deterministic: the same cluster gives the same names whoever asks."""

from __future__ import annotations

from collections.abc import Collection

from oars.model import HEAD, Group, MemberId, Role


def member_prefix(group: str) -> str:
    """worker-0 for the default group, gpu-0 for the group gpu."""
    return "worker" if group == "default" else group


def member_ids(group: Group, count: int, taken: Collection[MemberId] = ()) -> list[MemberId]:
    """The first `count` ids of the group that are not taken."""
    if group.role is Role.HEAD:
        return [HEAD][:count]
    found: list[MemberId] = []
    number = 0
    while len(found) < count:
        candidate = MemberId(f"{member_prefix(group.name)}-{number}")
        if candidate not in taken:
            found.append(candidate)
        number += 1
    return found


def index(member: MemberId) -> int:
    """The number at the end of an id; 0 for the head and for pods, whose names end in random letters."""
    number = member.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
