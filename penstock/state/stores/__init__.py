"""Where checkpoints are kept: one interface, several stores.

api.py        what every store does, and the laws
"""
