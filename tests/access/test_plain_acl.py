"""`plain_acl.yml` of RocketMQ 4.9 as users of the table."""

from __future__ import annotations

import pytest
from gantry_broker.access.decide import Policy
from gantry_broker.access.plain_acl import read_plain_acl
from gantry_broker.access.table import AccessTable

FILE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
  - accessKey: rocketmq2
    secretKey: another-secret
    admin: true
"""


def test_the_sample_file() -> None:
    users = read_plain_acl(FILE)
    assert [(user.name, user.super, user.keys) for user in users] == [
        ("RocketMQ", False, ("12345678",)),
        ("rocketmq2", True, ("another-secret",)),
    ]
    table = AccessTable(version=1, mode="Enabled", users=tuple(users))
    user = Policy.of(table.model_dump()).users["RocketMQ"]

    def may(kind: str, name: str) -> str:
        return "".join(action[0] for action in ("Pub", "Sub") if user.may(kind, name, [action], "10.0.0.1"))

    assert [may("Topic", f"topic{letter}") for letter in "ABCD"] == ["", "PS", "S", ""]
    assert [may("Group", f"group{letter}") for letter in "ABC"] == ["", "PS", "S"]


def test_an_entry_decides_alone_for_its_name() -> None:
    """RocketMQ looks at a default only for a name without an entry; the last entry of a name counts."""
    [user] = read_plain_acl(
        "accounts: [{accessKey: a, secretKey: hidden-secret, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB, "
        "topicPerms: [p=PUB, s=SUB, d=DENY, t=PUB, t=SUB, '%RETRY%g=DENY'], groupPerms: [h=PUB]}]"
    )
    table = AccessTable(version=1, mode="Enabled", users=(user,))
    found = Policy.of(table.model_dump()).users["a"]

    def may(kind: str, name: str) -> str:
        return "".join(action[0] for action in ("Pub", "Sub") if found.may(kind, name, [action], "10.0.0.1"))

    assert [may("Topic", name) for name in "psdtx"] == ["P", "S", "", "S", "PS"]
    assert [may("Group", name) for name in "ghx"] == ["", "P", "S"]


@pytest.mark.parametrize("perm", ["ANY", "pub", "PUB | SUB"])
def test_a_permission_that_rocketmq_takes_for_deny_is_refused(perm: str) -> None:
    for field in (f"topicPerms: ['x={perm}']", f"defaultTopicPerm: '{perm}'"):
        with pytest.raises(ValueError, match="has no permission of DENY"):
            read_plain_acl(f"accounts: [{{accessKey: a, secretKey: hidden-secret, {field}}}]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: 1", "accounts is not a list"),
        ("a: [", "not YAML in line"),
        ("accounts: [1]", r"accounts\[0\] is not a mapping"),
        ("accounts: [{secretKey: hidden-secret}]", "accessKey is absent"),
        ("accounts: [{accessKey: a}]", "secretKey is absent"),
        ("accounts: [{accessKey: a, secretKey: hidden}]", "8 to 256 characters"),
        ("accounts: [{accessKey: 'a b', secretKey: hidden-secret}]", "accessKey must have"),
        ("accounts: [{accessKey: a, secretKey: hidden-secret, admin: maybe}]", "admin is 'maybe'"),
        ("accounts: [{accessKey: a, secretKey: hidden-secret, topicPerms: [x]}]", "'name=PUB|SUB' is expected"),
        ("accounts: [{accessKey: a, secretKey: hidden-secret, topicPerms: [x=ALL]}]", "'x=ALL' has no permission"),
        ("accounts: [{accessKey: a, secretKey: hidden-secret, topicPerms: x=PUB}]", "topicPerms is not a list"),
        ("accounts: [&a {accessKey: a, secretKey: hidden-secret}, *a]", "accessKey a twice"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("accounts: [{accessKey: a, secretKey: hidden-secret]", "not YAML"),
    ],
)
def test_errors_name_the_field_and_show_no_key(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        read_plain_acl(text)
    assert "hidden" not in str(caught.value)


def test_a_file_of_any_size_is_refused_early() -> None:
    with pytest.raises(ValueError, match="the limit is"):
        read_plain_acl("x" * (1 << 21))
