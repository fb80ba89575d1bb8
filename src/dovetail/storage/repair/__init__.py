"""Keeping every ledger at full strength."""
