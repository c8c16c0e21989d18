"""Durable state in SQLite or PostgreSQL; callers get values, never rows."""

from levada.live.store.database import StoreError, Unconfirmed, shown
from levada.live.store.retention import Expired
from levada.live.store.store import STORE_ID, Changes, LeaseLost, Store, StoreLease
from levada.live.store.values import AuditEntry, HistoryLine, JobRow, RequestRow

__all__ = [
    "STORE_ID",
    "AuditEntry",
    "Changes",
    "Expired",
    "HistoryLine",
    "JobRow",
    "LeaseLost",
    "RequestRow",
    "Store",
    "StoreError",
    "StoreLease",
    "Unconfirmed",
    "shown",
]
