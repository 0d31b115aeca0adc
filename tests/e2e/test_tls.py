"""With certificate files every connection of the field is TLS, and nobody gets in without one.

Addresses are typed here, and nobody is looked for.
"""

from pathlib import Path

import pytest
import trustme

from .support import check_books, labels, new_field, start_small


def _files(folder: Path, authority: trustme.CA, name: str) -> dict[str, str]:
    """Write the certificate of one role; it serves its broker and shows itself to others."""
    paths = {kind: folder / f"{name}.{kind}.pem" for kind in ("ca", "cert", "key")}
    issued = authority.issue_cert("127.0.0.1", "localhost", common_name=name)
    authority.cert_pem.write_to_path(str(paths["ca"]))
    issued.private_key_pem.write_to_path(str(paths["key"]))
    for i, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(paths["cert"]), append=i > 0)
    return {kind: str(path) for kind, path in paths.items()}


@pytest.mark.slow
def test_an_agent_of_another_authority_is_not_let_in(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    with new_field(tmp_path) as field:
        field.defaults |= {"tls": _files(tmp_path, authority, "everybody"), "discovery": "off"}
        coordinator = start_small(field, rounds=4, edges=0, agents=0)
        wan = str(coordinator.wait("ready")["broker"])
        edge = field.edge("edge-0", broker="embedded", coordinator=wan)
        lan = str(edge.wait("ready")["broker"])
        assert lan.startswith("mqtts://")
        forged = _files(tmp_path, stranger, "stranger")
        outsider = field.agent("outsider", "digits:rate=10", tls=forged, edges=[lan])
        field.agent("agent-0", labels(0), edges=[lan])
        assert coordinator.wait("end")["rounds_done"] == 4
        outsider.wait("ready")
        assert not outsider.all("edge_joined")
        joined = edge.all("agent_joined")
        own = str(field.processes["agent-0"].wait("ready")["id"])
        assert {str(event["agent"]) for event in joined} == {own}
    check_books(coordinator)
