"""ApiVersions (18), versions 0-4: what this broker serves, derived from the registrations.

v3 the client's software name and version (KIP-511) and finalized features (KIP-584); v4 also lists supported features whose
minimum is 0 (KAFKA-17011). An unknown version gets a v0 response with UNSUPPORTED_VERSION and this API's own range, so that a
newer client can fall back.
"""

from __future__ import annotations

import re
from typing import Final

from barnabas.broker.requests.api_index import SERVED
from barnabas.broker.requests.context import UNKNOWN_SOFTWARE
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.operations.features import SUPPORTED_FEATURES
from barnabas.wire.errors import ErrorCode
from barnabas.wire.headers import API_VERSIONS
from barnabas.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# GetTelemetrySubscriptions and PushTelemetry are served without a receiver as well, but clients need not know.
TELEMETRY: Final = (71, 72)
# Software names and versions that Kafka accepts: they become parts of metric names.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@api(18, 0, 4)
def api_versions(context: HandlerContext, request: ApiVersionsRequest | None) -> ApiVersionsResponse:
    if request is None:
        own = SERVED[API_VERSIONS]
        return ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=[
                ApiVersion(api_key=API_VERSIONS, min_version=own.advertised_min, max_version=own.max_version)
            ],
        )
    if context.api_version >= 3 and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    peer = context.reply.peer
    peer.software_name = request.client_software_name or UNKNOWN_SOFTWARE
    peer.software_version = request.client_software_version or UNKNOWN_SOFTWARE
    receives_metrics = context.services.client_metrics.receiver is not None
    features = context.services.controller.image.features
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=key, min_version=served.advertised_min, max_version=served.max_version)
            for key, served in SERVED.items()
            if not served.is_internal and (receives_metrics or key not in TELEMETRY)
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
            if low > 0 or context.api_version >= 4
        ],
        finalized_features_epoch=context.services.controller.image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(features.items())
            if name in SUPPORTED_FEATURES  # metadata that Kafka wrote may name more
        ],
    )
