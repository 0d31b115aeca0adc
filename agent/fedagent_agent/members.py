"""Opens a device's part in secure aggregation; with certificates, among its site alone."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from fedagent_node.errors import CredentialsError
from fedagent_node.site.credentials import is_of_site, load_credentials
from fedagent_task.recipe.spec import SecureAggregationSpec

from .core.effects import Key

# Imported late: cryptography costs an idle device several megabytes.
if TYPE_CHECKING:
    from fedagent_node.data_dir import Identity
    from fedagent_task.secure_aggregation.member import Member

_log = logging.getLogger(__name__)


def open_member(
    data_dir: Path, identity: "Identity | None", key: Key, spec: SecureAggregationSpec
) -> "Member | None":
    """Return fresh keys for a round; None: nothing could be signed, or vouched for."""
    if identity is None:
        return None
    from fedagent_task.secure_aggregation.keys import Place  # noqa: PLC0415
    from fedagent_task.secure_aggregation.member import Member  # noqa: PLC0415

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
