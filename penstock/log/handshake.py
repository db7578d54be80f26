"""How a client of a log server, or of a node, begins: both sides prove the token.

Law: whatever stands at the other end, it gets a nonce and, if it proved the token itself, a proof
that is good for this connection only (wire/proof.py). The token is never sent, and a server that
wants to be shown it gets nothing.
"""

from __future__ import annotations

import secrets
from typing import TypeVar, cast

from penstock.errors import BadFormat, BadRequest, PenstockError, Unauthorized
from penstock.log.pairing import Message, PairedConnection
from penstock.wire.errors import error_code
from penstock.wire.messages import Challenge, Failed, Meet, MeetAs, encode_as
from penstock.wire.proof import NONCE_BYTES, Nonces, is_proof, prove_client, prove_server
from penstock.wire.token import is_narrowed, proof_key, split_token

M = TypeVar("M", bound=Message)


async def ask_with_proof(
    connection: PairedConnection[M], request: int, hello: M, token: str
) -> M | None:
    """The answer to the first message of a connection; None if it answers no challenge.

    Raises Unauthorized if the two sides do not have the same token, and what else the server says.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    try:
        meet = MeetAs(nonce, split_token(token)[0].text) if is_narrowed(token) else Meet(nonce)
        token = proof_key(token)
    except BadRequest as error:
        raise Unauthorized(str(error)) from None
    try:
        answer, _ = await connection.ask(request, cast(M, meet))
    except PenstockError as error:
        ended = connection.closed.result() if connection.closed.done() else error
        if not isinstance(ended, BadFormat):
            raise
        error = ended
        raise Unauthorized(
            f"the server takes part in no challenge ({error}): it wants to be shown the token, "
            "which is not done any more; it is older than this client, and must be upgraded"
        ) from error
    if not isinstance(answer, Challenge):
        return None
    nonces = Nonces(nonce, answer.nonce)
    if not is_proof(answer.proof, prove_server(token, nonces)):
        problem = Unauthorized(
            "the server does not have this token: the token is wrong, or it is a false server"
        )
        # So that it can tell its operator.
        said = Failed(error_code(problem), "the server did not prove the token")
        connection.send(request, cast(M, said))
        connection.flush()
        raise problem
    proof = prove_client(token, nonces, hello.KIND, encode_as(type(hello), hello))
    welcome, _ = await connection.ask(request, hello, proof)
    return welcome
