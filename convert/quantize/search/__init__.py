"""The search for the cheapest precision of each layer that keeps an accuracy budget."""
