"""Calibration: the data and its judge, what is observed of each value, and ranges from it."""
