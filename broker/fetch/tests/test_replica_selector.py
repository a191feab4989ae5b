"""Which replica a consumer is sent to, rule by rule (KIP-392)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.warnings import warnings_about
from barnabas.broker.fetch.replica_selector import (
    NO_PREFERENCE,
    ReplicaView,
    preferred_read_replica,
    rack_aware,
    selector_of,
)

RACKS = st.sampled_from([None, "", "a", "b"])
VIEWS = st.lists(
    st.builds(
        ReplicaView,
        broker_id=st.integers(1, 9),
        rack=RACKS,
        log_end_offset=st.integers(0, 2),
        caught_up_ms_ago=st.integers(0, 2),
    ),
    min_size=1,
    unique_by=lambda view: view.broker_id,
)


@given(rack=st.sampled_from(["", "a", "b", "c"]), views=VIEWS)
def test_rack_aware(rack: str, views: list[ReplicaView]) -> None:
    leader, *followers = views
    chosen = preferred_read_replica(rack_aware, rack, leader, followers)
    near = [view for view in views if view.rack == rack]
    if not rack or not near or leader in near:
        assert chosen == NO_PREFERENCE
        return
    (best,) = (view for view in views if view.broker_id == chosen)
    assert best in near
    for other in near:
        assert other.log_end_offset <= best.log_end_offset
        if other.log_end_offset == best.log_end_offset:
            assert other.caught_up_ms_ago >= best.caught_up_ms_ago
            if other.caught_up_ms_ago == best.caught_up_ms_ago:
                assert other.broker_id <= best.broker_id


def test_the_selector_is_named_by_its_class() -> None:
    def named(name: str) -> dict[str, str]:
        return {"replica.selector.class": name}

    package = "org.apache.kafka.common.replica."
    assert selector_of(BrokerConfig.from_properties({})) is None
    assert selector_of(BrokerConfig.from_properties(named(f"{package}LeaderSelector"))) is None
    properties = named(f"{package}RackAwareReplicaSelector")
    assert selector_of(BrokerConfig.from_properties(properties)) is rack_aware
    assert not list(warnings_about(properties, is_alone=True))
    (warning,) = warnings_about(named("com.example.Nearest"), is_alone=False)
    assert warning.startswith("replica.selector.class has no effect")
