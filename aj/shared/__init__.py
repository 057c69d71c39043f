"""Values and pure functions; nothing else of aj is imported here."""
