"""``python -m castore`` is the command ``castore``."""

from castore.cli.main import main

if __name__ == "__main__":
    main()
