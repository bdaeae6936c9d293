"""Half precision: ranges that it does not hold, and repairs."""
