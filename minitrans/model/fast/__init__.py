"""Clever twins of plain code. Each has a plain original that says the same, and a test that holds them equal."""
