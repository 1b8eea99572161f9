"""``python -m transporter``, the same as the command ``transporter``."""

from transporter.cli.app import main

if __name__ == "__main__":
    main()
