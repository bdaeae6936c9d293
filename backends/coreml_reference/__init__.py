"""A reference evaluator for Core ML's ML Programs that needs no Mac."""
