"""Committed rows of a stream in databases, in order, exactly once.

api.py           what a batch is, and what a target must do with it
messages.py      what player and hosts of targets say to each other
routing.py       which shard a row belongs to
target_queue.py  what is to be sent to one target
player_core.py   the player: what to read, what to send to whom, when to try again
"""
