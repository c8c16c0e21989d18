"""LeaseFence: which server may write to the cluster.

A Lease object per store holds the highest epoch. A server writes its epoch when it opens and watches the object: it
stops writing as soon as it sees a higher one. It also stops when it has not renewed the lease of its store for 10 s,
which is before another server can win that lease (15 s).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import LEASES, ApiError, KubernetesApi
from levada.backends.kubernetes.objects import AnyObject
from levada.errors import Refused

#: Longest time without a renewal of the store's lease.
_RENEWED_WITHIN_S = 10.0


class LeaseFence:
    """The right to write to the cluster on behalf of a store."""

    def __init__(self, api: KubernetesApi, store: str, lease_age_s: Callable[[], float]) -> None:
        """*lease_age_s* returns the time since the lease of the store was renewed."""
        self._api, self._store, self._lease_age_s = api, store, lease_age_s
        self.name = f"levada-{store}"
        self.epoch = 0
        self._highest = 0

    async def take(self, epoch: int) -> None:
        """Write *epoch* to the Lease; raises Refused if it has a higher one."""
        while True:
            try:
                found = await self._read()
                if found is not None:
                    self.observe(found)
                if self._highest > epoch:
                    raise Refused(f"epoch {epoch} is over: a server with epoch {self._highest} acts on the cluster")
                await self._write(epoch, found)
                self.epoch, self._highest = epoch, max(epoch, self._highest)
                return
            except ApiError as error:
                if error.code != 409:
                    raise

    async def _read(self) -> AnyObject | None:
        try:
            content = await self._api.get(LEASES, self._api.namespace, self.name)
        except ApiError as error:
            if error.is_missing:
                return None
            raise
        return msgspec.json.decode(content, type=AnyObject)

    async def _write(self, epoch: int, found: AnyObject | None) -> None:
        meta = {"annotations": {names.EPOCH: str(epoch), names.STORE: self._store}}
        if found is None:
            body = {"metadata": {"name": self.name, **meta}, "spec": {}}
            await self._api.create(
                LEASES, self._api.namespace, {"apiVersion": LEASES.api_version, "kind": "Lease", **body}
            )
        else:
            version = {"resourceVersion": found.metadata.resource_version}
            await self._api.patch(LEASES, self._api.namespace, self.name, {"metadata": {**meta, **version}})

    def observe(self, lease: AnyObject) -> None:
        """Take in a version of the Lease, or the epoch in another object of this store."""
        if lease.metadata.annotations.get(names.STORE) == self._store:
            self.see(lease.metadata.annotations.get(names.EPOCH, ""))

    def see(self, epoch: str | int) -> None:
        """Take in an epoch that another server wrote."""
        if str(epoch).isdecimal():
            self._highest = max(self._highest, int(epoch))

    @property
    def closed(self) -> str:
        """Why this server must not write; empty if it may."""
        if self._highest > self.epoch:
            return f"epoch {self.epoch} is over: a server with epoch {self._highest} acts on the cluster"
        age = self._lease_age_s()
        if age > _RENEWED_WITHIN_S:
            return f"the lease of the store was not renewed for {age:.0f} s; nothing is written to the cluster"
        return ""

    def check(self) -> None:
        """Raise Refused unless this server may write."""
        if self.closed:
            raise Refused(self.closed)
