"""Engines in processes of their own: isolation, trials of unknown files, emulation, the guard."""
