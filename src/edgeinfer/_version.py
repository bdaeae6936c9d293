"""The version, which modules read without the public package."""

__version__ = "0.1.0"
