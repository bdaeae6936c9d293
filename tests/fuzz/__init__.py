"""Files that nobody wrote, given to every reader: ``python -m tests.fuzz`` (``make fuzz``)."""
