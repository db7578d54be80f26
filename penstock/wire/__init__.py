"""Bytes on the wire; pure.

frames.py         cut a byte stream into frames, with limits and CRC
messages.py       the messages and their encoding
node_messages.py  those between proxies and storage nodes
target_messages.py  those between players and hosts of targets
proof.py          both sides prove the token, and neither shows it
token.py          tokens that were narrowed: an HMAC chain under the root token
errors.py         error classes as wire codes
"""
