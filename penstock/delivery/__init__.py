"""Committed rows of a stream in databases, in order, exactly once.

api.py           what a batch is, and what a target must do with it
fold.py          what a batch changes in a table: at most one change per key
targets/         databases that rows are delivered to
"""
