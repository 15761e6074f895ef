"""Every claim of the papers against what was computed or measured here."""

from suffice.reproduce.evidence.claims import Claim, claims
from suffice.reproduce.evidence.document import page, write_page
from suffice.reproduce.evidence.finding import Finding

__all__ = ["Claim", "Finding", "claims", "page", "write_page"]
