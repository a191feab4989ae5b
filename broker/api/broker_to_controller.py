"""What brokers ask of the active controller for themselves, never for clients:

- AlterPartition (56), versions 2-3: a leader proposes another ISR (KIP-497). v3 names the broker epoch of each member, so that
  one that has restarted meanwhile does not count (KIP-903).
- AllocateProducerIds (67), version 0: a broker gets a block of producer ids (KIP-730).
- AssignReplicasToDirs (73), version 0: a broker reports in which log directories its replicas lie (KIP-858).
"""

from __future__ import annotations

from barnabas.broker.requests.context import Outcome
from barnabas.broker.requests.registry import api
from barnabas.broker.services import HandlerContext, decide
from barnabas.controller.operations.alter_partition import alter_partition
from barnabas.controller.operations.directories import assign_replicas
from barnabas.controller.operations.producer_ids import allocate_block
from barnabas.wire.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from barnabas.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from barnabas.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


@api(56, 2, 3, controller=True, internal=True)
def propose_isr(context: HandlerContext, request: AlterPartitionRequest) -> Outcome:
    return decide(
        context,
        lambda image: alter_partition(image, context.services.config, request),
        None,
        lambda error, _: AlterPartitionResponse(error_code=error),
    )


@api(67, 0, 0, controller=True, internal=True)
def allocate_producer_ids(context: HandlerContext, request: AllocateProducerIdsRequest) -> Outcome:
    return decide(
        context,
        lambda image: allocate_block(image, request.broker_id, request.broker_epoch),
        lambda block: AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block)),
        lambda error, _: AllocateProducerIdsResponse(error_code=error),
    )


@api(73, 0, 0, controller=True, internal=True)
def assign_replicas_to_dirs(context: HandlerContext, request: AssignReplicasToDirsRequest) -> Outcome:
    return decide(
        context,
        lambda image: assign_replicas(image, context.services.config, request),
        None,
        lambda error, _: AssignReplicasToDirsResponse(error_code=error),
    )
