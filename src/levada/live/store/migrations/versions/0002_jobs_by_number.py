"""Identify jobs by number: an id may return after its first job was removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COLUMNS = 'number, id, "user", submitted, ended, about, result'


def upgrade() -> None:
    """A new table in the place of the old one."""
    op.create_table(
        "jobs_by_number",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("user", sa.String(200), nullable=False),
        sa.Column("submitted", sa.Float(53), nullable=False),
        sa.Column("ended", sa.Float(53), nullable=True),
        sa.Column("forgotten", sa.Float(53), nullable=True),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("result", sa.Text, nullable=True),
    )
    op.execute(f"INSERT INTO jobs_by_number ({_COLUMNS}) SELECT {_COLUMNS} FROM jobs")
    op.drop_table("jobs")
    op.rename_table("jobs_by_number", "jobs")
    for column in ("id", "user", "ended"):
        op.create_index(f"ix_jobs_{column}", "jobs", [column])
