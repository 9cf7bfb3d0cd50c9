"""The numbers of members, and the Services that are named after them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from oars.kube.client import Client
from oars.kube.errors import ApiError, is_not_found
from oars.kube.kinds import POD, SERVICE, Object
from oars.model import Desired, Group
from oars.places.kube.render import objects
from oars.places.kube.state import observe
from oars.places.kube.state.cache import ClusterCache, ReadYourWrites
from oars.places.kube.state.owned_objects import OwnedObjects


async def number(client: Client, written: ReadYourWrites, group: Group, pods: Sequence[Object]) -> None:
    """Label each worker of the group with its number, if it has none of the group's: pods of a Deployment are not
    numbered."""
    if not group.number_label:
        return
    staying = [pod for pod in pods if observe.group_name(pod) == group.name and observe.is_staying(pod)]
    for pod, chosen in free_numbers(staying, group.number_label, objects.numbers(group)):
        body = {"metadata": {"labels": {group.number_label: str(chosen)}}}
        try:
            written.note(await client.patch(POD, pod["metadata"]["name"], pod["metadata"]["namespace"], body))
        except ApiError as error:
            if not is_not_found(error):  # it is gone already
                raise


def free_numbers(pods: Sequence[Object], label: str, numbers: range) -> list[tuple[Object, int]]:
    """The pods without one of the numbers, the oldest first, each with the lowest one that is free."""
    free = dict.fromkeys(map(str, numbers))
    without = []
    for pod in sorted(pods, key=lambda each: (str(each["metadata"]["creationTimestamp"]), each["metadata"]["name"])):
        number = pod["metadata"]["labels"].get(label)
        if number in free:
            del free[number]
        else:
            without.append(pod)
    return [(pod, int(number)) for pod, number in zip(without, free, strict=False)]


async def withdraw(owned: OwnedObjects, cache: ClusterCache, desired: Desired) -> None:
    """Delete the Services of members that the cluster no longer has. Another group may have the numbers that follow."""
    needed = {each["metadata"]["name"] for each in objects.alias_services(desired)}
    for alias in (each for each in desired.aliases if each.is_numbered):
        group = next(each for each in desired.groups if each.name == alias.group)
        for surplus in itertools.count(objects.numbers(group).stop):
            name = objects.alias_name(alias, surplus)
            if name in needed:
                continue
            if not cache.has(SERVICE.kind, name):
                break
            await owned.withdraw(SERVICE, name, desired.namespace)
