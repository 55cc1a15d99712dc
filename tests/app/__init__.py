"""An installed app of the test run: its handlers stand in `background.py`."""
