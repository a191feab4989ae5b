"""DescribeAcls, CreateAcls and DeleteAcls where no authorizer is configured."""

from __future__ import annotations

from barnabas.wire.messages.create_acls import AclCreation, CreateAclsRequest
from barnabas.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from barnabas.wire.messages.describe_acls import DescribeAclsRequest
from compat_tests.conform.case import case
from compat_tests.conform.session import Session

TOPIC, LITERAL, ANY, ALLOW, READ = 2, 3, 1, 3, 3


@case("DescribeAcls")
def describe(session: Session) -> None:
    session.ask(
        DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=None,
            operation=ANY,
            permission_type=ANY,
        )
    )


@case("CreateAcls")
def create(session: Session) -> None:
    one = AclCreation(
        resource_type=TOPIC,
        resource_name="t",
        resource_pattern_type=LITERAL,
        principal="User:a",
        host="*",
        operation=READ,
        permission_type=ALLOW,
    )
    for count in (0, 1, 2):
        session.ask(CreateAclsRequest(creations=[one] * count), note=f"{count} creations")


@case("DeleteAcls")
def delete(session: Session) -> None:
    one = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter="t",
        pattern_type_filter=LITERAL,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    for count in (0, 1, 2):
        session.ask(DeleteAclsRequest(filters=[one] * count), note=f"{count} filters")
