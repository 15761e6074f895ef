"""The page: one HTML file with its style and its scripts inside."""

from suffice.studio.page.bundle import Bundle, bundle

__all__ = ["Bundle", "bundle"]
