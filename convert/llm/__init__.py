"""Language models from their files to bundles."""
