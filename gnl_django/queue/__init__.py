"""Jobs, lanes, claim, worker. Read README.md beside this file for the order."""
