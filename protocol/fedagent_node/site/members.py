"""Whether a device belongs to a site, by the certificate that it shows with its mask keys."""

import logging
from collections.abc import Callable
from pathlib import Path

from fedagent_node.errors import CredentialsError
from fedagent_node.site.certificates import CertificateError, read_certificate
from fedagent_node.site.credentials import Credentials, load_credentials
from fedagent_protocol.messages import MemberKeys

_log = logging.getLogger(__name__)


def is_of_site(held: Credentials, agent: str, keys: MemberKeys) -> bool:
    """Return whether a device's certificate is the site's, for its own key, and not revoked."""
    try:
        found = read_certificate(keys.certificate, held.ca_der, now=held.judged_time())
        revoked = held.revocations()
    except (CertificateError, CredentialsError):
        return False
    named = (found.role, found.id, found.public) == ("agent", agent, keys.identity)
    return named and not revoked.has(found)


def members_of(data_dir: Path) -> Callable[[str, MemberKeys], bool]:
    """Return the check of a role's own site; everybody passes where the role has none."""
    try:
        held = load_credentials(data_dir)
    except CredentialsError as error:
        _log.warning("certificates of masked rounds are left to the devices: %s", error)
        held = None
    if held is None:
        return lambda _agent, _keys: True
    site = held
    return lambda agent, keys: is_of_site(site, agent, keys)
