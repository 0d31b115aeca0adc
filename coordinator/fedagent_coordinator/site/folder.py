"""The site as its coordinator holds it: the authority, and the coordinator's own certificate."""

import time
from dataclasses import dataclass
from pathlib import Path

from fedagent_coordinator.errors import RefusedError
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.site import FOLDER
from fedagent_node.site.authority import CA_FILE, DAYS, Authority
from fedagent_node.site.certificates import fingerprint
from fedagent_node.site.credentials import (
    CRL_FILE,
    Credentials,
    Joined,
    load_credentials,
    store_credentials,
    store_crl,
)


@dataclass(frozen=True, slots=True)
class Site:
    """A site's authority, and what the coordinator holds of it like every other role."""

    data_dir: Path
    name: str
    authority: Authority
    credentials: Credentials

    def own(self) -> Credentials:
        """Return the coordinator's credentials as they are on disk now: they are renewed."""
        return load_credentials(self.data_dir) or self.credentials


def open_site(data_dir: Path, site: str, *, days: float = DAYS, now: float | None = None) -> Site:
    """Return the site kept in a coordinator's directory, founded there at the first start.

    Raises:
        CredentialsError: The files are damaged.
        RefusedError: The directory's authority is of another site.
    """
    folder = data_dir / FOLDER
    if (folder / CA_FILE).exists():
        authority = Authority.load(folder)
    else:
        authority = Authority.create(folder, site)
    if authority.site != site:
        hint = "give the same --site as before, or choose another --data-dir for another site"
        raise RefusedError(
            f"--site: this data directory belongs to site {authority.site!r}, not to {site!r}",
            hint,
        )
    identity = load_or_create(data_dir)
    credentials = load_credentials(data_dir)
    if not (folder / CRL_FILE).exists():
        store_crl(data_dir, authority.crl((), 0))
    now = time.time() if now is None else now
    if credentials is None or not credentials.certificate.serves(now):
        credentials = renew_own(data_dir, authority, identity, days=days, now=now)
    return Site(data_dir, site, authority, credentials)


def renew_own(
    data_dir: Path,
    authority: Authority,
    identity: Identity,
    *,
    days: float = DAYS,
    now: float | None = None,
) -> Credentials:
    """Give the coordinator a new certificate, in place of the one it has."""
    held, public = load_credentials(data_dir), identity.public_bytes
    before = None if held is None else held.certificate
    certificate = authority.issue(public, "coordinator", days, now=now, before=before)
    joined = Joined(site=authority.site, fingerprint=fingerprint(authority.der))
    return store_credentials(data_dir, identity, certificate, authority.der, joined)
