"""`python -m preprocess` is the command `tokenbin`."""

from preprocess.cli import main

if __name__ == "__main__":
    main()
