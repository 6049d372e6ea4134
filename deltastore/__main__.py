"""`python -m deltastore` is `deltastore`."""

from deltastore.cli import main

if __name__ == "__main__":
    main()
