"""``python -m edgeinfer`` is the ``edgeinfer`` command."""

from edgeinfer.cli import main

if __name__ == "__main__":
    main()
