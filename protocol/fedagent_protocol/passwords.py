"""Passwords in text: nothing that is shown may hold one."""

import re

_SECRET = re.compile(r"(mqtts?://[^\s:/@]*):.*@", re.DOTALL)


def hide_password(text: str) -> str:
    """Return text without the password of the address in it; rather too much is hidden."""
    return _SECRET.sub(r"\1:***@", text)
