import pytest

from fedagent_node.broker.mosquitto import mosquitto_program
from tests.fakes.site import Members

KINDS = [
    pytest.param("mosquitto", marks=pytest.mark.mosquitto),
    "embedded",
]


@pytest.fixture(autouse=True)
def _needs_mosquitto(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("mosquitto") and mosquitto_program() is None:
        pytest.skip("mosquitto is not installed")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Members:
    """A site whose members' files stay for a module of tests."""
    return Members(tmp_path_factory.mktemp("home"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value
