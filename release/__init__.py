"""What builds the packages that are handed out."""
