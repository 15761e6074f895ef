"""The ground that everything stands on: records, files, progress, grammar, and torch's versions."""
