"""Why a job of a case got what it got, in words that hold after the one decision that was made."""

from __future__ import annotations

from levada.core.reasons import Code, Reason, reason

#: Live, `NEW` is said before the first decision about a job; in a case the decision has been made, and left it aside.
_LEFT_ASIDE = "The policy starts one job per decision; the next one is about it."


def told(code: int, evidence: int) -> Reason:
    """The reason that a decision gives for a job."""
    why = reason(code, evidence)
    return Reason(code=why.code, text=_LEFT_ASIDE) if code == Code.NEW else why


def percent(part: float) -> str:
    """A part of the time in per cent, without the sign; what is hardly anything says so."""
    return f"{100 * part:.4g}" if part >= 1e-4 else "<0.01"
