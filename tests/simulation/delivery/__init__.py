"""Deliveries under faults: the shipped player beside targets of our own.

search.py        all states of a small world, one after the other
small_world.py   two players, two targets, three entries: every step that can happen
small_player.py  the player's core as an automaton, for that search
small_wires.py   what is on its way between a player and a target, in small worlds
"""
