"""The `edgeinfer` command."""
