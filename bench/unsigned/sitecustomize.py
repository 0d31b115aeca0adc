"""Every process that finds this folder on its path makes no signature and believes all.

`bench.trust` compares with such a field: the same messages, of the same lengths.
"""

from fedagent_protocol import signed

NONE = bytes(signed.SIGNATURE_BYTES)
vars(signed)["verify"] = lambda *_: True

from fedagent_node import data_dir, envelope  # noqa: E402 - they take `verify` as they find it

type.__setattr__(data_dir.Identity, "sign", lambda *_: NONE)
vars(envelope)["signed_bytes"] = lambda *_: b""
