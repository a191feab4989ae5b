"""SaslHandshake (17), versions 0-1, where none is expected: on a listener without SASL, or after the authentication.

Where one is expected sasl_authenticator.py (broker/network) serves it, before the dispatcher.
"""

from __future__ import annotations

from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@api(17, 0, 1)
def sasl_handshake(_context: HandlerContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
