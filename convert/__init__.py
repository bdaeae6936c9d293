"""The converter: source model in, verified bundle out. Never imported by ``edgeinfer.runtime``."""
