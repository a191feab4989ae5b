"""How many topics a template may have, decided for requests of many topics and one after the other."""

from __future__ import annotations

import pytest

from barnabas.controller.config.validators import ConfigError
from barnabas.controller.metadata.image import TOPIC_RESOURCE, MetadataImage
from barnabas.nats.binding.decisions import BindingDecisions
from barnabas.nats.binding.reader import TEMPLATE_OF

OF_BOUND = {TEMPLATE_OF: "bound"}


def image_of(**topics: dict[str, str]) -> MetadataImage:
    image = MetadataImage()
    for name, configs in topics.items():
        image.configs[TOPIC_RESOURCE, name] = dict(configs)
    return image


def bound(topic_max: int) -> dict[str, str]:
    return {"nats.subjects": "a.>", "nats.topic.template": "{2}", "nats.topic.max": str(topic_max)}


def decisions(image: MetadataImage) -> BindingDecisions:
    return BindingDecisions(image, {"nats.servers": "nats://127.0.0.1:4222"}.get)


def test_topics_of_one_request_count() -> None:
    deciding = decisions(image_of(bound=bound(3), one=OF_BOUND))
    for name in ("two", "three"):
        deciding.check(name, {}, OF_BOUND, "delete")
        deciding.accept(name, OF_BOUND)
    with pytest.raises(
        ConfigError, match=r"has 3 topics, and nats\.topic\.max=3 allows no more: raise it on bound"
    ):
        deciding.check("four", {}, OF_BOUND, "delete")


def test_a_topic_of_a_template_stays_one() -> None:
    """Whatever became of the bound topic, and of how many there may be."""
    deciding = decisions(image_of(bound=bound(1), one=OF_BOUND, two=OF_BOUND))
    deciding.check("one", {}, {**OF_BOUND, "nats.subjects": "b"}, "delete")
    deciding = decisions(image_of(one=OF_BOUND))
    deciding.check("one", {}, {**OF_BOUND, "nats.paused": "true"}, "delete")


def test_a_topic_that_leaves_a_template_makes_room() -> None:
    deciding = decisions(image_of(bound=bound(1), one=OF_BOUND))
    deciding.accept("one", {})
    deciding.check("two", {}, OF_BOUND, "delete")


def test_only_bound_topics_with_a_template_have_topics() -> None:
    deciding = decisions(image_of(bound=bound(5), plain={"nats.subjects": "a"}))
    for topic, configs in (("x", {TEMPLATE_OF: "plain"}), ("x", {TEMPLATE_OF: "none"})):
        with pytest.raises(ConfigError, match=r"It names a topic with a nats\.topic\.template"):
            deciding.check(topic, {}, configs, "delete")
    with pytest.raises(ConfigError, match="be of its own template"):
        deciding.check("bound", {}, {**bound(5), TEMPLATE_OF: "bound"}, "delete")
