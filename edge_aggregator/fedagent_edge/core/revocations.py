"""The site's list of the revoked, handed on between coordinator and agents."""

from fedagent_node.effects import Effect, Send, TakeRevocations
from fedagent_protocol.messages import Revocations, RevocationsNeed

from .effects import COORDINATOR
from .sessions import AgentSession
from .state import EdgeState

CRL_AGAIN_S = 5.0
"""How often one agent is sent the list of the revoked: it may be large."""


def take(state: EdgeState, message: Revocations) -> list[Effect]:
    """Take a list that is newer than the one that is gone by."""
    newer = message.number > state.crl
    return [TakeRevocations(message.crl, message.ids)] if newer else []


def show(state: EdgeState) -> list[Effect]:
    """Show the coordinator the list that is gone by: it has lost who was revoked."""
    if not state.crl_pem:
        return []
    return [Send(COORDINATOR, Revocations(number=state.crl, crl=state.crl_pem))]


def hand_on(
    state: EdgeState, session: AgentSession, need: RevocationsNeed, now: float
) -> list[Effect]:
    """Pass the authority's list on: agents learn of revoked edges by any other edge."""
    late = now < session.crl_at + CRL_AGAIN_S
    if late or not state.crl_pem or need.number >= state.crl:
        state.counters["revocations_unneeded"] += 1
        return []
    session.crl_at = now
    return [Send(session.agent, Revocations(number=state.crl, crl=state.crl_pem))]
