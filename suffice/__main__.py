"""`python -m suffice`, the same as `suffice`; torchrun starts it this way."""

from suffice.cli import main

if __name__ == "__main__":
    main()
