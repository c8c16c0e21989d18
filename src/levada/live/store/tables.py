"""Table definitions of the store. A change here requires a migration."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

#: One row: holder and expiry of the lease, and the last sequence number. Appends compare and swap it.
lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(200), nullable=False),
    Column("until", Float(53), nullable=False),
    Column("sequence", BigInteger, nullable=False),
)

#: Every turn of the engine, see `live/log_entry.py`.
log = Table(
    "log",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("body", LargeBinary, nullable=False),
)

#: State of the engine after a turn.
snapshots = Table(
    "snapshots",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float(53), nullable=False),
    Column("body", LargeBinary, nullable=False),
)

#: Every job as submitted, and its result.
jobs = Table(
    "jobs",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # Not unique: an id can be reused after its first job is forgotten.
    Column("id", String(200), nullable=False, index=True),
    Column("user", String(200), nullable=False, index=True),
    Column("submitted", Float(53), nullable=False),
    Column("ended", Float(53), nullable=True, index=True),
    # When it was unlisted and its directory removed.
    Column("forgotten", Float(53), nullable=True),
    Column("about", Text, nullable=False),
    Column("result", Text, nullable=True),
)

#: Submissions with a key: the same key gets the same answer.
requests = Table(
    "requests",
    metadata,
    Column("user", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("answer", Text, nullable=False),
    Column("at", Float(53), nullable=False, index=True),
)

#: Events for users.
history = Table(
    "history",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float(53), nullable=False),
    Column("job", String(200), nullable=True, index=True),
    Column("type", String(50), nullable=False),
    Column("text", Text, nullable=False),
    Column("data", Text, nullable=False),
)

users = Table(
    "users",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("created", Float(53), nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("user", String(200), nullable=False),
    Column("role", String(20), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("created", Float(53), nullable=False),
    Column("expires", Float(53), nullable=True),
    Column("revoked", Float(53), nullable=True),
)

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Float(53), nullable=False, index=True),
    Column("user", String(200), nullable=False),
    Column("role", String(20), nullable=False),
    Column("method", String(10), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("detail", Text, nullable=False),
)

#: Settings by name, such as the key that signs worker tokens.
settings = Table(
    "settings",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("value", Text, nullable=False),
)
