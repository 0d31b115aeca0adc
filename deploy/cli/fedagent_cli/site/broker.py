"""`fedagent broker`: what a shared mosquitto needs of the site: key, certificate, access list."""

import time
from pathlib import Path

import click

from fedagent_cli import options, places
from fedagent_cli.command_line import Number
from fedagent_cli.errors import UNREADABLE, CliError, MissingError, UsageError, no_run
from fedagent_cli.output import echo, emit
from fedagent_cli.site.enrolment import founded_site
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.standing import open_site
from fedagent_node.broker.acl import AccessList
from fedagent_node.data_dir import load_or_create
from fedagent_node.site import credentials as held
from fedagent_node.site.certificates import common_name, fingerprint

ACL_FILE = "fedagent.acl"
SETTINGS = """\
listener 8883
cafile {cafile}
crlfile {crlfile}
certfile {certfile}
keyfile {keyfile}
tls_version tlsv1.3
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file {acl_file}
retain_available false
max_packet_size 1048576
max_inflight_messages 100
max_queued_messages 400
max_connections 1200
max_keepalive 300
memory_limit 117440512"""


@click.command(
    epilog=options.examples(
        "fedagent broker --to /etc/mosquitto/fedagent > /etc/mosquitto/conf.d/fedagent.conf",
        "fedagent broker --to /etc/mosquitto/fedagent --site barn --days 365",
    )
)
@click.option(
    "--to",
    type=options.PATH,
    required=True,
    help="The broker's folder; created if it does not exist.",
)
@click.option("--site", default="", help="Name of the site to create, if there is none.")
@click.option(
    "--days",
    type=Number(float, min=1, max=365),
    default=90.0,
    help="Validity of the certificate in days.",
)
@options.coordinator_data
@options.as_json
def broker(*, to: Path, site: str, days: float, data_dir: Path | None, as_json: bool) -> None:
    """Write key, certificate, revocation list and access list of a shared mosquitto.

    It prints the lines of mosquitto.conf. Run it again with the same folder to renew them, when an
    edge has joined or a member was revoked; the key is kept. Then send the broker a SIGHUP, or
    restart it if a member was revoked: that ends its sessions.
    """
    folder = places.coordinator_dir(data_dir)
    try:
        site = site or founded_site(folder)[0]
    except MissingError as error:
        hint = "name the site to create with --site, or the coordinator's folder with --data-dir"
        raise no_run(f"no site in {folder}", hint) from error
    try:
        kept, edges = _certified(folder, site, to, days)
    except OSError as error:
        raise CliError(
            f"{error.filename}: {error.strerror}", "choose another --to", exit_code=UNREADABLE
        ) from error
    files = {
        "cafile": str(kept.ca.absolute()),
        "crlfile": str(kept.crl.absolute()),
        "certfile": str(kept.cert.absolute()),
        "keyfile": str(kept.key.absolute()),
        "acl_file": str((to / ACL_FILE).absolute()),
    }
    made = kept.certificate
    if as_json:
        emit({"id": made.id, "site": site, "until": round(made.not_after), "edges": edges, **files})
        return
    echo(SETTINGS.format(**files))
    until = time.strftime("%Y-%m-%d", time.localtime(made.not_after))
    echo(f"# of site {site}, until {until}; only you read them: chown them to the broker's user")


def _certified(
    folder: Path, site: str, to: Path, days: float
) -> tuple[held.Credentials, list[str]]:
    """Found the site if need be; return what the broker now has of it, and the edges' ids."""
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
        out = enrolment.revoked()
        members = enrolment.members(now=now)
    joined = held.Joined(site=site, fingerprint=fingerprint(home.authority.der))
    kept = held.store_credentials(to, identity, made, home.authority.der, joined)
    held.store_crl(to, home.authority.crl(out.serials, out.number, ids=out.ids))
    edges = [
        one.id for one in members if one.role == "edge" and one.state in ("accepted", "joined")
    ]
    named = [common_name("edge", ident) for ident in edges]
    named.append(common_name("coordinator", load_or_create(folder).id))
    (to / ACL_FILE).write_text(AccessList(site, tuple(named), out.ids).mosquitto(), "utf-8")
    return kept, edges
