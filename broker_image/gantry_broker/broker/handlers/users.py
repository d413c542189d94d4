"""Users by mqadmin: createUser, updateAcl and so on of 5.x, and the commands of 4.9. Who may is decided at the port.

A change counts at this member at once. The control plane fetches it and sends the next table to all members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gantry_broker.access import administration
from gantry_broker.access.administration import Wrong
from gantry_broker.access.signature import ACCESS_KEY
from gantry_broker.broker.access_control import TooManyChanges
from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.handlers.requests import json_body, ok
from gantry_broker.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from gantry_broker.access.table import Operation, User
    from gantry_broker.broker.access_control import AccessControl
    from gantry_broker.broker.role import RoleState
    from gantry_broker.config import BrokerConfig
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection

FAILED: Final = {
    int(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG): ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
    int(RequestCode.DELETE_ACL_CONFIG): ResponseCode.DELETE_ACL_CONFIG_FAILED,
    int(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG): ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED,
}
"""Codes of 4.9 for what could not be done; for the others SYSTEM_ERROR."""


class Parts(Protocol):
    """What these functions use of a member."""

    config: BrokerConfig
    role: RoleState
    access: AccessControl


async def manage(broker: Parts, conn: Connection, frame: Frame) -> Frame:
    """All fifteen requests about users."""
    access = broker.access
    if not access.is_on:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, "authentication is Disabled: set it to Enabled or Permissive to manage users"
        )
    try:
        async with access.editing:
            return await _manage(broker, frame)
    except Wrong as error:
        raise RequestRejected(FAILED.get(frame.code, ResponseCode.SYSTEM_ERROR), str(error)) from None
    except TooManyChanges as error:
        raise RequestRejected(ResponseCode.SYSTEM_BUSY, str(error)) from None
    except OSError as error:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"the change is in force, but cannot be written: {error.strerror}"
        ) from None


async def _manage(broker: Parts, frame: Frame) -> Frame:
    access, ext, code = broker.access, frame.ext, frame.code
    users = access.users

    async def changed(op: Operation, name: str, user: User | None) -> Frame:
        before = users.get(name)
        if before != user:
            if before is not None and before.super:
                administration.keeps_a_super_user(users, name, user)
            await access.change(op, name, user, ext.get(ACCESS_KEY, ""))
        return ok(frame)

    name = ext.get("username", "")
    if code == RequestCode.AUTH_CREATE_USER:
        return await changed("CreateUser", name, administration.created(users, name, _body(frame, "userInfo")))
    if code == RequestCode.AUTH_UPDATE_USER:
        return await changed("UpdateUser", name, administration.updated(users, name, _body(frame, "userInfo")))
    if code == RequestCode.AUTH_DELETE_USER:
        return await changed("DeleteUser", name, None)
    if code == RequestCode.AUTH_GET_USER:
        user = users.get(name)
        return ok(frame, body=b"" if user is None else orjson.dumps(administration.user_info(user)))
    if code == RequestCode.AUTH_LIST_USER:
        return ok(frame, body=orjson.dumps(administration.list_users(users, ext.get("filter", ""))))
    if code == RequestCode.AUTH_LIST_ACL:
        listed = administration.list_acls(
            [users[one] for one in sorted(users)], ext.get("subjectFilter", ""), ext.get("resourceFilter", "")
        )
        return ok(frame, body=orjson.dumps(listed))
    if code in (
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
    ):
        name = administration.subject_name(ext.get("subject", ""))
        if code == RequestCode.AUTH_GET_ACL:
            return ok(frame, body=orjson.dumps(administration.acl_info(administration.existing(users, name))))
        if code == RequestCode.AUTH_DELETE_ACL:
            user = administration.without_rules(users, name, ext.get("resource", ""))
            return await changed("DeleteAcl", name, user)
        user = administration.with_rules(users, name, _body(frame, "aclInfo"))
        return await changed("CreateAcl" if code == RequestCode.AUTH_CREATE_ACL else "UpdateAcl", name, user)
    name = ext.get("accessKey", "")
    if code == RequestCode.UPDATE_AND_CREATE_ACL_CONFIG:
        return await changed("UpdateUser", name, administration.plain_config(users, ext))
    if code == RequestCode.DELETE_ACL_CONFIG:
        administration.existing(users, name)
        return await changed("DeleteUser", name, None)
    if code == RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG:
        return ok(frame, body=orjson.dumps(administration.plain_configs(users)))
    if code == RequestCode.GET_BROKER_CLUSTER_ACL_INFO:
        version = orjson.dumps({"counter": access.version, "timestamp": 0}).decode()
        return ok(
            frame,
            {
                "version": version,
                "allAclFileVersion": "{}",
                "brokerName": broker.config.group,
                "brokerAddr": broker.role.address,
                "clusterName": broker.config.cluster,
            },
        )
    raise Wrong("addresses that need no signature are not supported: give the users' rules their sources")


def _body(frame: Frame, what: str) -> Mapping[str, Any]:
    value = json_body(frame, what)
    if not isinstance(value, dict):
        raise Wrong(f"the body ({what}) is no JSON object")
    return value
