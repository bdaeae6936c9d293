"""How loops that no kernel of our own writes are ordered: one rule a kind of machine."""
