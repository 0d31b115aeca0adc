"""Who was revoked since the backup of which a coordinator's data is, learnt from its edges."""

import logging
import sqlite3
import time
from pathlib import Path

from fedagent_coordinator.errors import UnreadableDatabaseError
from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_node.errors import CredentialsError
from fedagent_node.site.certificates import CertificateError
from fedagent_node.site.credentials import load_credentials
from fedagent_node.site.reading import read_crl

_log = logging.getLogger(__name__)


def learn_list(folder: Path, edge: str, crl: bytes) -> None:
    """Take over a list of the revoked that an edge has shown; who watches members signs a newer.

    That the site's authority made it is enough: who is revoked is so for good.
    """
    try:
        held = load_credentials(folder)
        if held is None:
            return
        found = read_crl(crl, held.ca_der)
        with Enrolment(folder) as enrolment:
            fresh = enrolment.learn(found, now=time.time())
    except (CertificateError, CredentialsError, UnreadableDatabaseError, sqlite3.Error) as error:
        _log.warning("the list of the revoked of edge %s is not taken over: %s", edge, error)
        return
    _log.warning(
        "revocation list %d of edge %s is newer than this coordinator's data: taken over; %d ids "
        "and certificates on it were not known here to be revoked",
        *(found.number, edge, fresh),
    )
