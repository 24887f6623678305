"""Clever twins of plain code. Each has a plain original, and a test that holds the two equal."""
