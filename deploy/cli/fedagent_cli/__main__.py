"""Run the command: ``python -m fedagent_cli``."""

from .main import main

if __name__ == "__main__":
    main()
