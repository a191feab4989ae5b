"""UpdateFeatures (57), versions 0-2: changes finalized feature levels (KIP-584).

v1 kinds of downgrade, and validation only (KIP-778); before it no level can be lowered. v2 has no results by feature: all
features change or none.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.requests.authorization import allows_cluster
from barnabas.broker.requests.context import PENDING, Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext
from barnabas.controller.metadata.acls import Operation
from barnabas.controller.metadata.decision import ApiError
from barnabas.controller.operations.features import FeatureUpdate, update_features
from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

FEATURES_MAX: Final = 1000  # of a request


@api(57, 0, 2, controller=True)
def update(context: HandlerContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse | Outcome:
    if not allows_cluster(context, Operation.ALTER):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return UpdateFeaturesResponse(error_code=error, error_message=error.message)
    if len(request.feature_updates) > FEATURES_MAX:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="The request names more features than there are.",
        )
    services = context.services
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type)
        for each in request.feature_updates
    ]

    def done(api_error: ApiError | None) -> None:
        if api_error is not None:
            text = f"The update failed for all features since the following feature had an error: {api_error.message}"
            context.complete(UpdateFeaturesResponse(error_code=api_error.error, error_message=text))
            return
        response = UpdateFeaturesResponse(error_message=None)
        if context.api_version <= 1:
            text = ErrorCode.NONE.name  # which is what Kafka says
            response.results = [
                UpdatableFeatureResult(feature=each.name, error_message=text) for each in updates
            ]
        context.complete(response)

    services.controller.run(
        lambda image: update_features(
            image,
            services.config,
            updates,
            validate_only=request.validate_only,
            controllers=services.controller_features(),
            is_alone=not services.voter_changes.is_possible,
        ),
        done,
        lambda error, message: context.complete(
            UpdateFeaturesResponse(error_code=ErrorCode(error), error_message=message)
        ),
    )
    return PENDING
