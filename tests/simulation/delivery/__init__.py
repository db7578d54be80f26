"""Deliveries under faults: the shipped player beside targets of our own.

world.py         a delivery at work: who is there, the two phases, the faults, the laws
swarm.py         what a seed draws, and small limits
players.py       the process of a player
tables.py        targets that crash, are slow, lose answers, and are restored
rows.py          who writes rows, and which of them count where: the oracle
search.py        all states of a small world, one after the other
small_world.py   two players, two targets, three entries: every step that can happen
small_player.py  the player's core as an automaton, for that search
small_wires.py   what is on its way between a player and a target, in small worlds
"""
