"""The REST API of the registry: what clients get, and the errors with Confluent's codes and texts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from barnabas.testing.schema_registry import store
from barnabas.testing.schema_registry.tests.asked import Asked, draft, record

ONE, TWO, THREE = record("a"), record("a", ("b", "")), record("a", ("b", ""), ("c", ""))
INCOMPATIBLE = record("a", "b")
TEXT = '{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
PROTO = 'syntax = "proto3";\nmessage Order { // of a customer\n  string id = 1;\n}\n'


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_versions_of_a_subject(asked: Asked) -> None:
    assert asked.done("GET", "/subjects") == []
    assert asked.register("orders-value", ONE) == 1
    assert asked.register("orders-value", TWO) == 2
    assert asked.register("orders-value", ONE) == 1  # again
    assert asked.done("GET", "/subjects") == ["orders-value"]
    assert asked.done("GET", "/subjects/orders-value/versions") == [1, 2]
    first = asked.done("GET", "/subjects/orders-value/versions/1")
    guid = first.pop("guid")
    assert first == {"subject": "orders-value", "version": 1, "id": 1, "schema": TEXT}
    for latest in ("latest", "-1", "2"):
        assert asked.done("GET", f"/subjects/orders-value/versions/{latest}")["id"] == 2
    assert asked.done("GET", "/subjects/orders-value/versions/1/schema") == ONE  # JSON itself
    assert asked.done("POST", "/subjects/orders-value", draft(ONE))["version"] == 1
    assert asked.done("GET", "/schemas/ids/1") == {"schema": TEXT, "guid": guid}
    assert asked.done("GET", f"/schemas/guids/{guid}")["schema"] == TEXT
    assert asked.done("GET", "/schemas/ids/1/schema") == ONE
    assert asked.done("GET", "/schemas/ids/1?fetchMaxId=true")["maxId"] == 2
    answer = asked.done("GET", "/schemas/ids/1?subject=orders-value")
    assert (answer["subject"], answer["version"]) == ("orders-value", 1)
    assert [each["version"] for each in asked.done("GET", "/schemas")] == [1, 2]
    assert [each["version"] for each in asked.done("GET", "/schemas?latestOnly=true")] == [2]
    assert asked.done("GET", "/schemas/types") == ["AVRO", "JSON", "PROTOBUF"]
    assert asked.done("GET", "/") == {}


def test_an_id_belongs_to_a_schema_and_not_to_a_subject(asked: Asked) -> None:
    assert asked.register("a", ONE) == 1
    assert asked.register("b", TWO) == 2
    spaced = json.dumps({key: ONE[key] for key in ("fields", "name", "type")}, indent=2)
    assert asked.register("c", spaced) == 1
    assert asked.done("GET", "/schemas/ids/1/subjects") == ["a", "c"]
    assert asked.done("GET", "/schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "c", "version": 1},
    ]
    assert asked.done("GET", "/subjects?offset=1&limit=1") == ["b"]
    assert asked.done("GET", "/subjects?subjectPrefix=c") == ["c"]


def test_normalized_schemas_are_the_same_with_properties_in_any_order(asked: Asked) -> None:
    first, second = ({**ONE, "extra": extra} for extra in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert asked.register("s", first, "?normalize=True") == asked.register("s", second, "?normalize=true")
    assert asked.register("s", second) == 2
    asked.done("PUT", "/config", {"normalize": True})
    assert asked.register("t", second) == 1
    names = [{"name": f"n{each}", "subject": "s", "version": 1} for each in (1, 2)]
    jsons = [asked.register("j", {"b": 1, "a": 2}, schemaType="JSON", references=names)]
    jsons += [asked.register("j", {"a": 2, "b": 1}, schemaType="JSON", references=names[::-1])]
    assert len(set(jsons)) == 1


def test_deleting_a_version(asked: Asked) -> None:
    for each in (ONE, TWO):
        asked.register("s", each)
    assert asked.refused("DELETE", "/subjects/s/versions/2?permanent=true") == (
        404,
        40407,
        "Subject 's' Version 2 was not deleted first before being permanently deleted",
    )
    assert asked.done("DELETE", "/subjects/s/versions/latest") == 2
    assert asked.done("GET", "/subjects/s/versions") == [1]
    assert asked.done("GET", "/subjects/s/versions?deleted=true") == [1, 2]
    assert asked.done("GET", "/subjects/s/versions?deletedOnly=true") == [2]
    assert asked.done("GET", "/subjects/s/versions/2?deleted=true")["deleted"] is True
    assert asked.refused("GET", "/subjects/s/versions/2") == (404, 40402, "Version 2 not found.")
    assert asked.refused("POST", "/subjects/s", draft(TWO)) == (404, 40403, "Schema not found")
    assert asked.done("POST", "/subjects/s?deleted=true", draft(TWO))["version"] == 2
    assert asked.refused("DELETE", "/subjects/s/versions/2") == (
        404,
        40406,
        "Subject 's' Version 2 was soft deleted.Set permanent=true to delete permanently",
    )
    assert asked.done("GET", "/schemas/ids/2")["schema"]  # data can still be read
    assert asked.register("s", TWO) == 2  # with its id, as another version
    assert asked.done("GET", "/subjects/s/versions?deleted=true") == [1, 3]
    asked.done("DELETE", "/subjects/s/versions/3")
    assert asked.done("DELETE", "/subjects/s/versions/3?permanent=true") == 3
    assert asked.refused("GET", "/schemas/ids/2") == (404, 40403, "Schema 2 not found")
    assert asked.register("s", TWO) == 3  # an id is not given out again


def test_deleting_a_subject(asked: Asked) -> None:
    for each in (ONE, TWO):
        asked.register("s", each)
    asked.done("PUT", "/config/s", {"compatibility": "NONE"})
    assert asked.refused("DELETE", "/subjects/s?permanent=true") == (
        404,
        40405,
        "Subject 's' was not deleted first before being permanently deleted",
    )
    assert asked.done("DELETE", "/subjects/s") == [1, 2]
    assert asked.refused("GET", "/config/s")[1] == 40408
    assert asked.done("GET", "/subjects") == []
    assert asked.done("GET", "/subjects?deleted=true") == ["s"]
    assert asked.done("GET", "/subjects?deletedOnly=true") == ["s"]
    assert asked.refused("GET", "/subjects/s/versions") == (404, 40401, "Subject 's' not found.")
    assert asked.refused("DELETE", "/subjects/s") == (
        404,
        40404,
        "Subject 's' was soft deleted.Set permanent=true to delete permanently",
    )
    assert asked.done("DELETE", "/subjects/s?permanent=true") == [1, 2]
    assert asked.refused("DELETE", "/subjects/s?permanent=true") == (404, 40401, "Subject 's' not found.")
    assert asked.done("GET", "/subjects?deleted=true") == []


def test_references(asked: Asked) -> None:
    currency = {"type": "enum", "name": "n.Currency", "symbols": ["EUR"]}
    price = {"type": "record", "name": "n.Price", "fields": [{"name": "in", "type": "n.Currency"}]}
    references = [{"name": "n.Currency", "subject": "currency", "version": -1}]
    status, code, message = asked.refused(
        "POST", "/subjects/price/versions", draft(price, references=references)
    )
    assert (status, code) == (422, 42201)
    assert "No schema reference found for subject 'currency'" in message
    asked.register("currency", currency)
    assert asked.register("price", price, references=references) == 2
    found = asked.done("GET", "/schemas/ids/2")
    assert found["references"] == [{"name": "n.Currency", "subject": "currency", "version": 1}]
    assert asked.done("GET", "/subjects/currency/versions/1/referencedby") == [2]
    whole = {**price, "fields": [{"name": "in", "type": currency}]}
    assert asked.done("POST", "/subjects/price", draft(whole))["id"] == 2  # the same, resolved
    for path in ("/subjects/currency", "/subjects/currency/versions/1"):
        assert asked.refused("DELETE", path) == (
            422,
            42206,
            "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=currency,version=1}.",
        )
    asked.done("DELETE", "/subjects/price/versions/1")
    assert asked.done("GET", "/subjects/currency/versions/1/referencedby") == []
    assert asked.done("DELETE", "/subjects/currency/versions/1") == 1


def test_an_incompatible_schema_is_refused(asked: Asked) -> None:
    asked.register("s", ONE)
    assert asked.refused("POST", "/subjects/s/versions", draft(INCOMPATIBLE)) == (
        409,
        409,
        'Schema being registered is incompatible with an earlier schema for subject "s", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/1' in the new schema has "
        "no default value and is missing in the old schema', additionalInfo:'b'}, {oldSchemaVersion: 1}, "
        f"{{oldSchema: '{TEXT}'}}, {{validateFields: 'false', compatibility: 'BACKWARD'}}]",
    )
    answer = asked.done("POST", "/compatibility/subjects/s/versions/1?verbose=true", draft(INCOMPATIBLE))
    assert answer["is_compatible"] is False
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in answer["messages"][0]
    path = "/compatibility/subjects/s/versions/latest"
    assert asked.done("POST", path, draft(INCOMPATIBLE)) == {"is_compatible": False}
    assert asked.done("POST", path, draft(TWO)) == {"is_compatible": True}
    assert asked.done("POST", f"{path}?verbose=true", draft(TWO)) == {"is_compatible": True, "messages": []}
    assert asked.done("POST", "/compatibility/subjects/t/versions/latest", draft(ONE)) == {
        "is_compatible": True
    }
    status, code, message = asked.refused("POST", "/subjects/s/versions", draft({}, schemaType="JSON"))
    assert (status, code) == (409, 409)
    assert "SCHEMA_TYPE_MISMATCH" in message


@pytest.mark.parametrize(
    ("level", "versions", "candidate", "is_compatible"),
    [
        ("NONE", [ONE], INCOMPATIBLE, True),
        ("BACKWARD", [ONE], TWO, True),
        ("BACKWARD", [ONE], INCOMPATIBLE, False),
        ("BACKWARD", [INCOMPATIBLE, ONE], record(), True),
        ("FORWARD", [ONE], INCOMPATIBLE, True),
        ("FORWARD", [ONE], record(), False),
        ("FULL", [ONE], TWO, True),
        ("FULL", [ONE], INCOMPATIBLE, False),
        ("FULL", [ONE], record(), False),
        ("BACKWARD", [record(), ONE, TWO], INCOMPATIBLE, True),  # TWO has had b
        ("BACKWARD_TRANSITIVE", [record(), ONE, TWO], INCOMPATIBLE, False),
        ("FORWARD", [ONE, record()], record("c"), True),
        ("FORWARD_TRANSITIVE", [ONE, record()], record("c"), False),
        ("FULL", [ONE, record(("a", ""))], record(), True),
        ("FULL_TRANSITIVE", [ONE, record(("a", ""))], record(), False),
    ],
)
def test_levels(asked: Asked, level: str, versions: list[Any], candidate: Any, is_compatible: bool) -> None:
    asked.done("PUT", "/config/s", {"compatibility": "none"})
    for each in versions:
        asked.register("s", each)
    assert asked.done("PUT", "/config/s", {"compatibility": level}) == {"compatibility": level}
    found = asked.done("POST", "/compatibility/subjects/s/versions", draft(candidate))
    assert found["is_compatible"] == is_compatible
    status, _ = asked.ask("POST", "/subjects/s/versions", draft(candidate))
    assert status == (200 if is_compatible else 409)


def test_levels_of_a_subject_and_of_all(asked: Asked) -> None:
    assert asked.done("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert asked.refused("GET", "/config/s") == (
        404,
        40408,
        "Subject 's' does not have subject-level compatibility configured",
    )
    assert asked.done("PUT", "/config", {"compatibility": "full"}) == {"compatibility": "FULL"}
    assert asked.done("GET", "/config/s?defaultToGlobal=true") == {"compatibilityLevel": "FULL"}
    asked.done("PUT", "/config/s", {"compatibility": "FORWARD"})
    assert asked.done("GET", "/config/s") == {"compatibilityLevel": "FORWARD"}
    assert asked.done("DELETE", "/config/s") == {"compatibilityLevel": "FORWARD"}
    assert asked.refused("DELETE", "/config/s") == (404, 40401, "Subject 's' not found.")
    assert asked.done("DELETE", "/config") == {"compatibilityLevel": "FULL"}
    assert asked.done("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    for body in ({"compatibility": "SIDEWARD"}, {}):
        assert asked.refused("PUT", "/config", body) == (
            422,
            42203,
            "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive, "
            "forward_transitive, and full_transitive",
        )


def test_modes(asked: Asked) -> None:
    asked.register("s", ONE)
    assert asked.done("GET", "/mode") == {"mode": "READWRITE"}
    assert asked.refused("GET", "/mode/s") == (
        404,
        40409,
        "Subject 's' does not have subject-level mode configured",
    )
    assert asked.done("GET", "/mode/s?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert asked.done("PUT", "/mode/s", {"mode": "READONLY"}) == {"mode": "READONLY"}
    for method, path, body in (
        ("POST", "/subjects/s/versions", draft(TWO)),
        ("DELETE", "/subjects/s", None),
        ("DELETE", "/subjects/s/versions/1", None),
        ("PUT", "/config/s", {"compatibility": "NONE"}),
    ):
        assert asked.refused(method, path, body) == (422, 42205, "Subject s is in read-only mode")
    assert asked.register("s", ONE) == 1  # it is there already
    assert asked.register("t", TWO) == 2
    assert asked.done("DELETE", "/mode/s") == {"mode": "READONLY"}
    assert asked.refused("DELETE", "/mode/s") == (404, 40401, "Subject 's' not found.")
    assert asked.refused("PUT", "/mode", {"mode": "WRITEONLY"}) == (
        422,
        42204,
        "Invalid mode. Valid values are READWRITE, READONLY, and IMPORT.",
    )


def test_importing_schemas_with_their_ids(asked: Asked) -> None:
    status, code, message = asked.refused("POST", "/subjects/s/versions", draft(ONE, id=7, version=3))
    assert (status, code, message) == (422, 42205, "Subject s is not in import mode")
    asked.done("PUT", "/mode", {"mode": "IMPORT"})
    assert asked.register("s", ONE, id=7, version=3) == 7
    assert asked.register("s", INCOMPATIBLE, id=9) == 9  # nothing is checked
    assert asked.done("GET", "/subjects/s/versions") == [3, 4]
    assert asked.refused("POST", "/subjects/t/versions", draft(TWO, id=7)) == (
        422,
        42205,
        "Overwrite new schema with id 7 is not permitted.",
    )
    assert asked.refused("POST", "/subjects/t/versions", draft(TWO)) == (
        422,
        42205,
        "Subject t is not in read-write mode",
    )
    asked.done("PUT", "/mode", {"mode": "READWRITE"})
    assert asked.register("t", TWO) == 10
    assert asked.refused("PUT", "/mode", {"mode": "IMPORT"}) == (
        422,
        42205,
        "Cannot import since found existing subjects",
    )
    assert asked.done("PUT", "/mode?force=True", {"mode": "IMPORT"}) == {"mode": "IMPORT"}


def test_json_schemas(asked: Asked) -> None:
    text = '{"$id": "order", "type": "object"}'
    assert asked.register("s", text, schemaType="JSON") == 1
    found = asked.done("GET", "/schemas/ids/1")
    assert (found["schema"], found["schemaType"]) == ('{"$id":"order","type":"object"}', "JSON")
    assert asked.register("t", '{"$id":"order","type":"object"}', schemaType="JSON") == 1
    assert asked.register("s", "true", schemaType="JSON") == 2
    for wrong in ("7", "{", " ", '{"x":NaN}', '{"x":"\\ud800"}'):
        assert asked.refused("POST", "/subjects/s/versions", draft(wrong, schemaType="JSON"))[1] == 42201


def test_protobuf_schemas(asked: Asked) -> None:
    assert asked.register("s", PROTO, schemaType="PROTOBUF") == 1
    assert asked.done("GET", "/schemas/ids/1")["schema"] == PROTO
    shorter = 'syntax="proto3"; message Order{string id=1;}'
    assert asked.register("t", shorter, schemaType="PROTOBUF") == 1
    assert asked.refused("GET", "/schemas/ids/1?format=serialized") == (
        501,
        501,
        "This schema came as a .proto file, and this registry has no compiler to serialize it",
    )
    descriptor = base64.b64encode(b"\x0a\x07a.proto\x62\x06proto3").decode()
    assert asked.register("u", descriptor, schemaType="PROTOBUF") == 2
    assert asked.done("GET", "/schemas/ids/2?format=serialized")["schema"] == descriptor
    for wrong in ("message Order {", "hello;", "message Order { ] }", 'syntax = "proto3', "aGVsbG8="):
        answer = asked.refused("POST", "/subjects/s/versions", draft(wrong, schemaType="PROTOBUF"))
        assert answer[1] == 42201, wrong


@pytest.mark.parametrize(
    ("schema_type", "one", "two"), [("JSON", "{}", "true"), ("PROTOBUF", PROTO, "message O {}")]
)
def test_what_is_not_checked_is_not_called_compatible(
    asked: Asked, schema_type: str, one: str, two: str
) -> None:
    asked.register("s", one, schemaType=schema_type)
    path = "/compatibility/subjects/s/versions/latest"
    assert asked.refused("POST", path, draft(two, schemaType=schema_type)) == (
        501,
        501,
        f"This registry does not check the compatibility of {schema_type} schemas",
    )
    assert asked.done("POST", path, draft(one, schemaType=schema_type)) == {"is_compatible": True}
    assert asked.register("s", two, schemaType=schema_type) == 2
    asked.done("PUT", "/config/s", {"compatibility": "NONE"})
    assert asked.done("POST", path, draft(two, schemaType=schema_type)) == {"is_compatible": True}


def test_metadata_and_rules_are_kept_and_part_of_a_schema(asked: Asked) -> None:
    more: dict[str, Any] = {"metadata": {"properties": {"owner": "a"}}, "ruleSet": {"domainRules": []}}
    assert asked.register("s", ONE) == 1
    assert asked.register("s", ONE, **more) == 2
    found = asked.done("GET", "/subjects/s/versions/2")
    assert {"metadata": found["metadata"], "ruleSet": found["ruleSet"]} == more


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/nowhere", None, (404, 404, "HTTP 404 Not Found")),
        ("GET", "/associations/resources/a/b", None, (404, 404, "HTTP 404 Not Found")),
        ("PUT", "/subjects", None, (405, 405, "HTTP 405 Method Not Allowed")),
        ("GET", "/subjects/none/versions", None, (404, 40401, "Subject 'none' not found.")),
        ("GET", "/subjects/none/versions/1", None, (404, 40401, "Subject 'none' not found.")),
        ("GET", "/subjects/s/versions/7", None, (404, 40402, "Version 7 not found.")),
        (
            "GET",
            "/subjects/s/versions/earliest",
            None,
            (
                422,
                42202,
                "The specified version 'earliest' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"',
            ),
        ),
        ("POST", "/subjects/none", draft(ONE), (404, 40401, "Subject 'none' not found.")),
        ("POST", "/subjects/s", draft(TWO), (404, 40403, "Schema not found")),
        ("GET", "/schemas/ids/77", None, (404, 40403, "Schema 77 not found")),
        ("GET", "/schemas/ids/x", None, (404, 404, "HTTP 404 Not Found")),
        ("GET", "/schemas/guids/x", None, (404, 40403, "Schema x not found")),
        ("DELETE", "/subjects/none", None, (404, 40401, "Subject 'none' not found.")),
        ("DELETE", "/subjects/s/versions/7", None, (404, 40402, "Version 7 not found.")),
        (
            "POST",
            "/subjects/a\nb/versions",
            draft(ONE),
            (422, 42208, "The specified subject 'a\nb' is not a valid subject."),
        ),
        ("POST", "/compatibility/subjects/s/versions/7", draft(ONE), (404, 40402, "Version 7 not found.")),
        (
            "POST",
            "/subjects/s/versions",
            draft("x" * (store.SCHEMA_CHARACTERS_MAX + 1)),
            (422, 42209, "Register operation failed because schema is too large"),
        ),
        ("POST", "/subjects/s/versions", {}, (422, 42201, "Invalid schema: Empty schema")),
        (
            "POST",
            "/subjects/s/versions",
            draft(ONE, schemaType="XML"),
            (422, 42201, "Invalid schema: Invalid schema type XML"),
        ),
        (
            "POST",
            "/subjects/s/versions",
            draft('"str"'),
            (422, 42201, 'Invalid schema: Undefined name: "str"'),
        ),
        (
            "POST",
            "/subjects/s/versions",
            draft('"\\ud800"'),
            (422, 42201, 'Invalid schema: Undefined name: "?"'),
        ),
    ],
)
def test_errors(asked: Asked, method: str, path: str, body: Any, expected: tuple[int, int, str]) -> None:
    asked.register("s", ONE)
    assert asked.refused(method, path, body) == expected
    assert asked.done("GET", "/subjects/s/versions") == [1]


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"schema": 7}', b'{"id": 2147483648}', b'{"references": [{}]}']
)
def test_bodies_that_are_no_requests(asked: Asked, body: bytes) -> None:
    assert asked.refused("POST", "/subjects/s/versions", body)[:2] == (400, 400)


def test_fields_that_clients_leave_empty_or_that_are_unknown(asked: Asked) -> None:
    nulls: dict[str, Any] = dict.fromkeys(
        ("schemaType", "references", "id", "version", "metadata", "ruleSet")
    )
    assert asked.register("s", ONE, **nulls, schemaTagsToAdd=[]) == 1


@pytest.mark.slow
def test_schemas_that_are_nested_too_deeply(asked: Asked) -> None:
    for schema_type, text in (
        ("AVRO", '{"type":"array","items":' * 5000 + '"int"' + "}" * 5000),
        ("AVRO", "[" * 100_000),
        ("JSON", '{"a":' * 100_000),
    ):
        answer = asked.refused("POST", "/subjects/s/versions", draft(text, schemaType=schema_type))
        assert answer[:2] == (422, 42201)
    # A chain of types, each in the next one: nothing is nested in its text, but the last one is.
    names = [f"R{index}" for index in range(900)]
    for version, doc in enumerate("de", 1):
        chain = [
            {"type": "record", "name": name, "fields": [{"name": "f", "type": before}], "doc": doc}
            for before, name in zip(["int", *names], names, strict=False)
        ]
        asked.register("chain", chain)
        last = {"type": "record", "name": "Last", "fields": [{"name": "f", "type": names[-1]}]}
        references = [{"name": "R", "subject": "chain", "version": version}]
        status, _ = asked.ask("POST", "/subjects/s/versions", draft(last, references=references))
        assert status == (200 if version == 1 else 422)


def test_bounds(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SCHEMAS_MAX", 2)
    monkeypatch.setattr(store, "VERSIONS_MAX", 4)
    monkeypatch.setattr(store, "SETTINGS_MAX", 1)
    for each in (ONE, TWO):
        asked.register("s", each)
    assert asked.refused("POST", "/subjects/s/versions", draft(THREE)) == (
        500,
        50001,
        "Register schema operation failed: this registry holds 2 schemas at most",
    )
    asked.register("t", ONE)
    asked.register("u", ONE)
    assert asked.refused("POST", "/subjects/v/versions", draft(ONE))[:2] == (500, 50001)
    asked.done("PUT", "/config/a", {"compatibility": "FULL"})
    asked.done("PUT", "/config/a", {"compatibility": "NONE"})
    assert asked.refused("PUT", "/mode/b", {"mode": "READONLY"})[:2] == (500, 50001)
    monkeypatch.setattr(store, "SCHEMAS_MAX", 10)
    monkeypatch.setattr(store, "VERSIONS_MAX", 10)
    monkeypatch.setattr(store, "ALL_CHARACTERS_MAX", 300)
    assert asked.refused("POST", "/subjects/s/versions", draft(THREE))[:2] == (500, 50001)


def test_a_test_takes_its_subjects_along_and_leaves_the_ids() -> None:
    asked = Asked()
    asked.register("old", ONE)
    before = asked.registry.state()
    asked.register("old", TWO)
    asked.register("new", THREE)
    asked.register("app-orders", THREE)
    asked.done("PUT", "/config", {"compatibility": "NONE"})
    asked.done("PUT", "/config/app-orders", {"compatibility": "FULL"})
    asked.done("PUT", "/mode/other", {"mode": "READONLY"})
    asked.registry.restore_subjects(before, ("app-",))
    assert asked.done("GET", "/subjects") == ["app-orders", "old"]
    assert asked.done("GET", "/subjects/old/versions") == [1]
    assert asked.done("GET", "/config") == {"compatibilityLevel": "BACKWARD"}
    assert asked.done("GET", "/config/app-orders") == {"compatibilityLevel": "FULL"}
    assert asked.refused("GET", "/mode/other")[1] == 40409
    assert asked.done("GET", "/schemas/ids/2")["schema"]
    assert asked.register("again", TWO) == 2
    assert asked.register("again", record(("z", ""))) == 4


def test_of_schemas_that_tests_have_left_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "UNUSED_MAX", 1)
    asked = Asked()
    asked.register("old", ONE)
    before = asked.registry.state()
    for each in (TWO, THREE):
        asked.register("s", each)
    asked.registry.restore_subjects(before, ())
    assert asked.refused("GET", "/schemas/ids/2")[1] == 40403
    assert asked.done("GET", "/schemas/ids/1")["schema"]
    assert asked.register("s", THREE) == 3
    assert asked.register("s", TWO) == 4


def test_the_methods_for_the_test_itself() -> None:
    registry = Asked().registry
    assert registry.register("s", ONE) == 1
    assert registry.register("j", {"type": "object"}, "JSON") == 2
    reference = {"type": "record", "name": "S", "fields": [{"name": "r", "type": "R"}]}
    assert registry.register("t", reference, references=[("R", "s", 1)]) == 3
    assert registry.subjects() == ["j", "s", "t"]
    assert registry.schemas("s") == [TEXT]
    assert registry.schemas("none") == []
