"""`python -m preprocess` is the command `tokenmill`."""

from preprocess.cli import main

if __name__ == "__main__":
    main()
