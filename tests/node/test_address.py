from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_edge.config import EdgeConfig
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert, advert_from, to_txt
from fedagent_node.settings import (
    PASSWORD_VARIABLE,
    SettingError,
    with_password,
)
from fedagent_protocol.errors import hide_password

CANARY = "k4n@ri/en:%"
WRITTEN = "k4n%40ri%2Fen%3A%25"
"""The same in a URL."""


@pytest.mark.parametrize(
    ("text", "host", "port", "scheme"),
    [
        ("edge:1883", "edge", 1883, "mqtt"),
        ("mqtt://10.0.0.1", "10.0.0.1", 1883, "mqtt"),
        ("mqtts://broker.example.org/", "broker.example.org", 8883, "mqtts"),
        (" [fe80::1]:99 ", "fe80::1", 99, "mqtt"),
        ("mqtts://[::1]:7", "::1", 7, "mqtts"),
    ],
)
def test_addresses_are_read_and_written(text: str, host: str, port: int, scheme: str) -> None:
    address = BrokerAddress.parse(text)
    assert (address.host, address.port, address.scheme) == (host, port, scheme)
    assert BrokerAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "edge", "edge:", ":1", "edge:0", "edge:65536", "http://x:1", "a b:1", "::1:1"),
        *("[x]:1", "mqtt://", "user@host:1", "-x:1", "a" * 400, "[10.0.0.1]:1", "edge:1\n2"),
    ],
)
def test_other_text_is_refused_with_the_hint(text: str) -> None:
    with pytest.raises(ValueError, match="not a broker"):
        BrokerAddress.parse(text)


def test_a_user_and_a_password_are_read_and_never_shown() -> None:
    address = BrokerAddress.parse(f"mqtts://me%20too:{WRITTEN}@host")
    assert (address.user, address.password, address.port) == ("me too", CANARY, 8883)
    assert address == BrokerAddress.parse("mqtts://host:8883")
    assert str(address) == "mqtts://host:8883"
    assert "k4n" not in f"{address!r}{address}"
    assert "too" not in repr(address)
    assert BrokerAddress.parse("mqtt://me@host").password is None
    assert BrokerAddress.parse("mqtt://me:@host").password == ""


@pytest.mark.parametrize(
    "text", ["mqtt://u:k4nary@x@y:99999", "u:k4nary@host:1", "mqtt://u:k4nary/1@host"]
)
def test_a_refused_address_does_not_show_its_password(text: str) -> None:
    with pytest.raises(SettingError, match="%40 for @") as caught:
        EdgeConfig(data_dir="d").address("broker", text)
    assert "k4nary" not in str(caught.value)
    assert "k4nary" not in hide_password(text) or "://" not in text


def test_a_password_comes_from_the_address_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbfof the file\r\n")  # as Windows writes it
    own, bare = (BrokerAddress.parse(f"mqtt://{who}@h") for who in ("u:own", "u"))
    there = {PASSWORD_VARIABLE: "of the environment"}

    def found(address: BrokerAddress, path: Path | None) -> str | None:
        where = None if path is None else str(path)
        return with_password("broker", address, where, there).password

    assert found(own, file) == "own"
    assert found(bare, file) == "of the file"
    assert found(bare, None) == "of the environment"
    assert found(BrokerAddress("h", 1), file) is None
    with pytest.raises(
        SettingError, match=rf"no password; .*password_file, set {PASSWORD_VARIABLE}"
    ):
        with_password("broker", bare, None, {})
    with pytest.raises(SettingError, match=r"password_file: .* cannot be read"):
        with_password("broker", bare, str(tmp_path / "none"), there)
    file.write_text("\n")
    with pytest.raises(SettingError, match="is empty"):
        with_password("broker", bare, str(file), there)


def txt(**changes: bytes) -> dict[bytes, bytes | None]:
    base: dict[bytes, bytes | None] = {
        b"v": b"1",
        b"site": b"home",
        b"id": b"ab12",
        b"mqtt": b"mqtt",
    }
    return base | {key.encode(): value for key, value in changes.items()}


def test_an_advert_survives_its_txt_record() -> None:
    for address in (BrokerAddress("10.0.0.1", 7), BrokerAddress("10.0.0.1", 7, "mqtts")):
        for external in (False, True):
            advert = Advert("edge", "ab12", "home", address, 1)
            record = {k.encode(): v.encode() for k, v in to_txt(advert, external=external).items()}
            hosts = () if external else (address.host,)
            assert advert_from("edge", record, hosts, 7) == advert


@pytest.mark.parametrize(
    "record",
    [
        {},
        txt(v=b"x"),
        txt(site=b"Home"),
        txt(site=b"a" * 65),
        txt(id=b"../../etc"),
        txt(mqtt=b"http://x:1"),
        txt(mqtt=b"mqtt://u:p@10.0.0.1"),
        txt(mqtt=b"h:1" + b" " * 200),
        txt(mqtt=b""),
    ],
)
def test_malformed_adverts_are_nothing(record: Mapping[bytes, bytes | None]) -> None:
    assert advert_from("edge", record, ("10.0.0.1",), 1883) is None


@given(st.dictionaries(st.sampled_from([b"v", b"site", b"id", b"mqtt"]), st.binary(max_size=80)))
def test_any_txt_record_is_an_advert_or_nothing(record: dict[bytes, bytes | None]) -> None:
    advert = advert_from("edge", record, ("10.0.0.1",), 1883)
    assert advert is None or str(advert).isprintable()
