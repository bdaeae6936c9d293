"""Core AI assets (``.aimodel``)."""
