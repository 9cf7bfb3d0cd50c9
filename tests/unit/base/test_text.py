from __future__ import annotations

from oars.base.text import MAX_NAMES, command, join_names


def test_few_names_are_listed_and_many_are_counted() -> None:
    names = [f"w{number}" for number in range(MAX_NAMES + 3)]
    assert join_names(names[:2]) == "w0,w1"
    assert join_names(names[:MAX_NAMES]).endswith(f",w{MAX_NAMES - 1}")
    assert join_names(names).endswith(f",w{MAX_NAMES - 1} and 3 more")


def test_command_names_the_namespace() -> None:
    assert command("scale", "demo", "3", "--force") == "oars scale demo 3 --force"
    assert command("why", "demo", namespace="team") == "oars why demo -n team"
