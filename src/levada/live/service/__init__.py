"""Service calls: everything that users, operators and workers can request.

`Service` owns one part per area: `submissions`, `jobs`, `cluster`, `history` and `workers`.
"""

from levada.live.service.service import Service

__all__ = ["Service"]
