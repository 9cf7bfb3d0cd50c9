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
    """Label each worker of the group with its number, if it has none: pods of a Deployment are not numbered."""
    if not group.number_label:
        return
    staying = [pod for pod in pods if observe.group_name(pod) == group.name and observe.is_staying(pod)]
    for pod, chosen in free_numbers(staying, group.number_label):
        body = {"metadata": {"labels": {group.number_label: str(chosen)}}}
        try:
            written.note(await client.patch(POD, pod["metadata"]["name"], pod["metadata"]["namespace"], body))
        except ApiError as error:
            if not is_not_found(error):  # it is gone already
                raise


def free_numbers(pods: Sequence[Object], label: str) -> list[tuple[Object, int]]:
    """The pods without a number, the oldest first, each with the lowest one that is free."""
    taken = {pod["metadata"]["labels"][label] for pod in pods if label in pod["metadata"]["labels"]}
    without = [pod for pod in pods if label not in pod["metadata"]["labels"]]
    without.sort(key=lambda pod: (str(pod["metadata"]["creationTimestamp"]), str(pod["metadata"]["name"])))
    free = (each for each in itertools.count() if str(each) not in taken)
    return list(zip(without, free, strict=False))


async def withdraw(owned: OwnedObjects, cache: ClusterCache, desired: Desired) -> None:
    """Delete the Services of members that the cluster no longer has."""
    for alias in (each for each in desired.aliases if each.is_numbered):
        count = next(each.replicas for each in desired.groups if each.name == alias.group)
        for surplus in itertools.count(count):
            name = objects.alias_name(alias, surplus)
            if not cache.has(SERVICE.kind, name):
                break
            await owned.withdraw(SERVICE, name, desired.namespace)
