"""`fedagent broker`: the certificate of a shared broker, and who may do what there."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import command_line, options
from .enrolment import founded_site, opened_enrolment, site_folder
from .errors import NoRunError, UnreadableError, UsageError
from .output import echo, emit

if TYPE_CHECKING:
    from fedagent_node.credentials import Credentials

app = command_line.CommandGroup(name="broker", help="Set up a shared broker.", no_args_is_help=True)
_HEAD = """\
# Who may do what on site {site}. mosquitto.conf needs beside it:
#   listener 8883
#   cafile, crlfile, certfile, keyfile: see `fedagent broker certificate`
#   tls_version tlsv1.3
#   require_certificate true
#   use_identity_as_username true
#   allow_anonymous false
#   acl_file THIS FILE
#   retain_available false
#   max_packet_size 1048576
#   max_inflight_messages 100
#   max_queued_messages 400
#   max_connections 1200
#   max_keepalive 300
#   memory_limit 117440512
# Write it again (and send SIGHUP) when an edge has joined.
"""


@app.command(
    "acl",
    epilog=options.examples(
        "fedagent broker acl > fedagent.acl",
    ),
)
def acl(
    *,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the access list of a shared mosquitto for this site and the edges that joined it."""
    from fedagent_node.acl import AccessList  # noqa: PLC0415 - heavy imports
    from fedagent_node.certificates import common_name  # noqa: PLC0415
    from fedagent_node.data_dir import load_or_create  # noqa: PLC0415

    folder = site_folder(data_dir)
    site, _ = founded_site(folder)
    with opened_enrolment(folder) as found:
        members, gone = found.members(now=time.time()), found.revoked_ids()
    edges = [
        one.id for one in members if one.role == "edge" and one.state in ("accepted", "joined")
    ]
    named = [common_name("edge", ident) for ident in edges]
    named.append(common_name("coordinator", load_or_create(folder).id))
    table = AccessList(site, tuple(named), gone)
    text = _HEAD.format(site=site) + table.mosquitto().rstrip("\n")
    if as_json:
        emit({"site": site, "edges": edges, "acl": text})
        return
    echo(text)


@app.command(
    "certificate",
    epilog=options.examples(
        "fedagent broker certificate --to /etc/mosquitto/fedagent",
        "fedagent broker certificate --to /etc/mosquitto/fedagent --site barn --days 365",
    ),
)
def certificate(
    *,
    to: Annotated[
        Path, command_line.Option("--to", help="The broker's folder; created if it does not exist.")
    ],
    site: Annotated[
        str, command_line.Option("--site", help="Name of the site to create, if there is none.")
    ] = "",
    days: Annotated[
        float, command_line.Option(min=1, max=365, help="Validity of the certificate in days.")
    ] = 90.0,
    data_dir: options.CoordinatorData = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the key, certificate and revocation list of a shared broker.

    Run it again with the same folder to renew them; the key is kept. Then send the broker a SIGHUP,
    or restart it if a member was revoked: that ends its sessions.
    """
    from fedagent_protocol.errors import FedagentError  # noqa: PLC0415 - heavy imports

    folder = site_folder(data_dir)
    try:
        site = site or founded_site(folder)[0]
    except NoRunError as error:
        hint = "name the site to create with --site, or the coordinator's folder with --data-dir"
        raise NoRunError(f"no site in {folder}", hint) from error
    try:
        kept = _certified(folder, site, to, days)
    except FedagentError as error:
        raise UsageError(error.sentence, error.hint) from error
    except OSError as error:
        raise UnreadableError(
            f"{error.filename}: {error.strerror}", "choose another --to"
        ) from error
    files = {
        "cafile": str(kept.ca.absolute()),
        "crlfile": str(kept.crl.absolute()),
        "certfile": str(kept.cert.absolute()),
        "keyfile": str(kept.key.absolute()),
    }
    made = kept.certificate
    if as_json:
        emit({"id": made.id, "site": site, "until": round(made.not_after), **files})
        return
    for word, path in files.items():
        echo(f"{word} {path}")
    until = time.strftime("%Y-%m-%d", time.localtime(made.not_after))
    echo(f"# of site {site}, until {until}; only you read them: chown them to the broker's user")


def _certified(folder: Path, site: str, to: Path, days: float) -> "Credentials":
    """Found the site if need be; return what the broker whose folder is `to` has of it now."""
    from fedagent_coordinator.enrolment import Enrolment  # noqa: PLC0415 - heavy imports
    from fedagent_coordinator.site import open_site  # noqa: PLC0415
    from fedagent_node import credentials as held  # noqa: PLC0415
    from fedagent_node.certificates import fingerprint  # noqa: PLC0415
    from fedagent_node.data_dir import load_or_create  # noqa: PLC0415

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = open_site(folder, site)
    before = held.load_credentials(to)
    if before is not None and before.certificate.role != "broker":
        role = before.certificate.role
        raise UsageError(
            f"{to} is the data directory of the {role}", "give the broker a folder of its own"
        )
    identity, now = load_or_create(to), time.time()
    with Enrolment(folder) as enrolment:
        enrolment.admit(identity.public_bytes, "broker", to.absolute().name[:64], now=now)
        made = home.authority.issue(identity.public_bytes, "broker", days, now=now)
        enrolment.issued(made, now=now)
        number, serials = enrolment.revocations()
        out = enrolment.revoked_ids()
    joined = held.Joined(site=site, fingerprint=fingerprint(home.authority.der))
    kept = held.store_credentials(to, identity, made, home.authority.der, joined)
    held.store_crl(to, home.authority.crl(serials, number, ids=out))
    return kept
