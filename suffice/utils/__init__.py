"""Utilities of all packages: records, files, progress, option grammar, torch compatibility."""
