"""The coordinator's settings, read once."""

from typing import Annotated, ClassVar, NamedTuple, Self

from msgspec import Meta

from fedagent_node.address import BrokerAddress, is_loopback
from fedagent_node.settings import LINK, BrokerConfig, Seed, SettingError
from fedagent_node.site.joining import JOIN_PORT
from fedagent_protocol.option import Option

DEFAULT_PAGE_PORT = 7428
"""Port of the live page, where nobody else has it."""


class PageAddress(NamedTuple):
    """Where the live page listens; port 0 takes the last one, or a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


class CoordinatorConfig(BrokerConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one coordinator."""

    prefix: ClassVar[str] = "FEDAGENT_COORDINATOR_"
    recipe: Annotated[str, Option("Recipe: a TOML file, or the name of a bundled one.")]
    sets: Annotated[
        tuple[str, ...],
        Option("Override a recipe key. Repeatable.", name="--set", metavar="KEY=VALUE"),
    ] = ()
    policy: Annotated[
        str | None, Option("Policy that chooses who trains; overrides the recipe's.")
    ] = None
    seed: Seed = None
    new_run: Annotated[bool, Option("Start a new run, although this directory holds one.")] = False
    """End an open run of another recipe, or repeat a finished one."""
    more_rounds: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        Option("Continue an ended run for this many more rounds.", default="", at_least=1),
    ] = 0
    """0: a run that has ended stays ended."""
    init: Annotated[
        str,
        Meta(max_length=4096),
        Option(
            "Begin a new run from this model: an exported .safetensors file, or a digest "
            "of `fedagent models list`.",
            metavar="MODEL",
            default="the seed's model",
        ),
    ] = ""
    accept_lost_history: Annotated[
        bool, Option("Accept a database that has lost committed history, and continue.")
    ] = False
    keep_rounds: Annotated[
        int,
        Meta(ge=0, le=10_000_000),
        Option(
            "Keep this many newest rounds: drop the inputs and decisions of older ones during "
            "the run; the ledger stays.",
            default="every round",
            at_least=1,
        ),
    ] = 0
    """0: nothing is dropped."""
    wait_edges: Annotated[
        int, Meta(ge=1, le=100_000), Option("Edges that must be connected before round 1.")
    ] = 1
    wait_agents: Annotated[
        int, Meta(ge=1, le=10_000_000), Option("Agents that must be connected before round 1.")
    ] = 1
    grace_s: Annotated[
        float, Meta(ge=0, le=3600), Option("Seconds beyond max_wait to wait for an edge's report.")
    ] = 2.0
    linger_s: Annotated[
        float,
        Meta(ge=0, le=600),
        Option("Seconds to keep running after the run has ended, to notify the edges."),
    ] = 1.0

    join_port: Annotated[
        int,
        Meta(ge=0, le=65_535),
        Option("Port at which devices and edges join the site; 0 takes a free one.", panel=LINK),
    ] = JOIN_PORT
    certificate_days: Annotated[
        float,
        Meta(ge=0.0001, le=365),
        Option("Validity of the site's certificates; renewed after two thirds of it.", panel=LINK),
    ] = 30.0

    web: Annotated[
        str,
        Meta(max_length=300),
        Option(
            "Address of the live page. Beyond loopback it uses TLS and requires its token.",
            metavar="HOST:PORT",
            default="127.0.0.1:7428, or a free port",
            panel=LINK,
        ),
    ] = ""
    no_web: Annotated[bool, Option("Do not serve the live page.", panel=LINK)] = False

    def checked(self) -> Self:
        """Return the settings; a run is either new or goes on."""
        if self.new_run and self.more_rounds:
            raise SettingError(
                "more_rounds", "cannot be combined with new_run", "leave one of them out"
            )
        if self.web and self.no_web:
            raise SettingError("web", "cannot be combined with no_web", "leave one of them out")
        self.page()
        return super().checked()

    def page(self) -> PageAddress | None:
        """Return where the live page listens; None for no page."""
        if self.no_web:
            return None
        if not self.web:
            return PageAddress("127.0.0.1", 0)
        host, _, port = self.web.rpartition(":")
        try:
            if port != "0":
                address = BrokerAddress.parse(self.web)
                return PageAddress(address.host, address.port)
            return PageAddress(BrokerAddress.parse(f"{host}:1").host, 0)
        except ValueError as error:
            hint = "write HOST:PORT, e.g. 127.0.0.1:7428 or 0.0.0.0:7428"
            raise SettingError("web", f"{self.web[:80]!r} is not an address", hint) from error

    @property
    def founds(self) -> bool:
        """Whether the site is this coordinator's: its broker, or a shared one, knows members."""
        shared = self.shared()
        return self.covered or (
            self.tls is None and shared is not None and shared.scheme == "mqtts"
        )

    @property
    def recipe_sets(self) -> tuple[str, ...]:
        """All overrides of the recipe; later ones win."""
        policy = () if self.policy is None else (f"policy.name={self.policy}",)
        seed = () if self.seed is None else (f"seed={self.seed}",)
        return (*self.sets, *policy, *seed)
