"""`dovetail backup` and `dovetail restore`: a node in a file (`dovetail.backup` has the theory).

backup.py    downloads the file from a node, verifies it, and gives it its name
draft.py     the file until it is complete: one command writes it, nobody else reads it
restore.py   the file into an empty data folder
"""
