"""A ticket: signs in one page, once, without its reader having to look for a token. Pure.

For programs that open the page themselves. An address may be seen by who lists processes; what is
in it is good for TICKET_SECONDS at most and used up by the page that it was made for.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

TICKET_SECONDS: Final = 120.0


@dataclass(slots=True)
class Ticket:
    """`code` is shown once for `token`."""

    code: str
    token: str
    #: When the first request could have come; None: the clock has not begun.
    since: float | None = None
    is_used: bool = False

    def redeem(self, code: str, now: float) -> str | None:
        """The token; None for a wrong, late or second code. A wrong one uses it up, too."""
        since = now if self.since is None else self.since
        is_good = hmac.compare_digest(code.encode(), self.code.encode())
        is_good = is_good and not self.is_used and now - since <= TICKET_SECONDS
        self.is_used = True
        return self.token if is_good else None
