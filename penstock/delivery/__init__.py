"""Committed rows of a stream in databases, in order, exactly once.

api.py           what a batch is, and what a target must do with it
"""
