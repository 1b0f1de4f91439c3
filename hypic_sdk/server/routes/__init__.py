"""The endpoints, a file for each kind; `table.py` lists them all."""
