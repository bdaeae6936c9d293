"""Operators that are lowered once: the portable builders, and the table that targets adopt."""
