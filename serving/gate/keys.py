"""Former name of the command `python -m serving.access.keys`."""

from serving.access.keys import main

if __name__ == "__main__":
    main()
