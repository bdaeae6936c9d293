"""Machine code next to other artifacts: whole small models, and functions around models."""
