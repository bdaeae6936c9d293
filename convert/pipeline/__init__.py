"""The stages of a conversion, from a checked request to a verified bundle."""
