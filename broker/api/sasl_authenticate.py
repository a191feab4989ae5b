"""SaslAuthenticate (36), versions 0-2, where none is expected; see sasl_handshake.py."""

from __future__ import annotations

from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@api(36, 0, 2)
def sasl_authenticate(
    _context: HandlerContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
