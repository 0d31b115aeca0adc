"""A device's part in secure aggregation; with certificates, among its site alone.

Imported when a task first asks for it: keys cost an idle device several megabytes.
"""

import logging
from pathlib import Path

from fedagent_node.data_dir import Identity
from fedagent_node.errors import CredentialsError
from fedagent_node.site.credentials import is_of_site, load_credentials
from fedagent_task.recipe.spec import SecureAggregationSpec
from fedagent_task.secure_aggregation.keys import Place
from fedagent_task.secure_aggregation.member import Member

from .core.effects import Key

_log = logging.getLogger(__name__)


def open_member(
    data_dir: Path, identity: Identity, key: Key, spec: SecureAggregationSpec
) -> Member | None:
    """Return fresh keys for a round; None: they could not be vouched for."""
    try:
        held = load_credentials(data_dir)
    except CredentialsError as error:
        _log.warning("not taking part in secure aggregation: %s", error)
        return None
    place = Place(key.run, key.round, key.edge)
    member = Member(identity.id, identity.public_bytes, identity.sign, place, spec)
    if held is not None:
        member.certificate = held.certificate.der
        member.trusted = lambda agent, keys: is_of_site(held, agent, keys)
    return member
