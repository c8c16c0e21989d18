"""What must not be lost, in SQLite or PostgreSQL. Rows never leave this package: values do."""

from levada.live.store.database import StoreTrouble, Unconfirmed, shown
from levada.live.store.store import Changes, Lease, LeaseLost, Store
from levada.live.store.trim import Spare
from levada.live.store.values import Deed, HistoryLine, JobRow, RequestRow

__all__ = [
    "Changes",
    "Deed",
    "HistoryLine",
    "JobRow",
    "Lease",
    "LeaseLost",
    "RequestRow",
    "Spare",
    "Store",
    "StoreTrouble",
    "Unconfirmed",
    "shown",
]
