"""`fedagent broker acl`: who may do what on a shared broker, as that broker reads it."""

import time
from enum import StrEnum
from typing import Annotated

from . import command_line, options
from .enrolment import founded_site, opened_enrolment, site_folder
from .output import echo

app = command_line.CommandGroup(name="broker", help="Set up a shared broker.", no_args_is_help=True)
_HEADS = {
    "mosquitto": """\
# Who may do what on site {site}. mosquitto.conf needs beside it:
#   listener 8883
#   cafile ca.pem
#   crlfile crl.pem
#   certfile cert.pem
#   keyfile key.pem
#   require_certificate true
#   use_identity_as_username true
#   allow_anonymous false
#   acl_file THIS FILE
#   retain_available false
#   max_packet_size 1048576
#   max_inflight_messages 100
#   max_queued_messages 400
# Write it again (and send SIGHUP) when an edge has joined.
""",
    "emqx": """\
%% Who may do what on site {site}: etc/acl.conf of EMQX 5. Beside it, of the listener:
%%   ssl_options.verify = verify_peer, ssl_options.fail_if_no_peer_cert = true
%%   mqtt.peer_cert_as_username = cn, mqtt.retain_available = false
%%   authorization.no_match = deny
%% Write it again when an edge has joined.
""",
}


class Kind(StrEnum):
    """Brokers whose rules can be written."""

    MOSQUITTO = "mosquitto"
    EMQX = "emqx"


@app.command(
    "acl",
    epilog=options.examples(
        "fedagent broker acl --for mosquitto > fedagent.acl",
        "fedagent broker acl --for emqx > acl.conf",
    ),
)
def acl(
    *,
    kind: Annotated[Kind, command_line.Option("--for", help="mosquitto or emqx.")] = Kind.MOSQUITTO,
    data_dir: options.CoordinatorData = None,
) -> None:
    """Print the access list of a shared broker for this site and the edges that joined it."""
    from fedagent_node.acl import AccessList  # noqa: PLC0415 - heavy imports
    from fedagent_node.certificates import common_name  # noqa: PLC0415
    from fedagent_node.data_dir import load_or_create  # noqa: PLC0415

    folder = site_folder(data_dir)
    site, _ = founded_site(folder)
    with opened_enrolment(folder) as found:
        members = found.members(now=time.time())
    edges = [
        one.id for one in members if one.role == "edge" and one.state in ("accepted", "joined")
    ]
    named = [common_name("edge", ident) for ident in edges]
    named.append(common_name("coordinator", load_or_create(folder).id))
    table = AccessList(site, tuple(named))
    text = table.mosquitto() if kind is Kind.MOSQUITTO else table.emqx()
    echo(_HEADS[kind].format(site=site) + text.rstrip("\n"))
