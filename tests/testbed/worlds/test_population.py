"""Who lives in a world: nobody's index comes twice, and edges are seen once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_testbed.recipe import Churn, Liars, WorldSpec
from fedagent_testbed.recipe import TestbedRecipe as Study
from fedagent_testbed.worlds.population import Population


def recipe(
    *, clients: int = 20, edges: int = 5, visible: int = 0, share: float = 0.0, every: int = 1
) -> Study:
    return Study(
        name="p",
        world=WorldSpec(
            clients=clients,
            edges=edges,
            visible=visible,
            churn=Churn(share=share, every=every),
            liars=Liars(share=0.5),
        ),
    )


@given(
    share=st.floats(0, 1), every=st.integers(1, 4), clients=st.integers(1, 30), seed=st.integers(0)
)
def test_churn_never_uses_an_index_again(share: float, every: int, clients: int, seed: int) -> None:
    people = Population(recipe(clients=clients, share=share, every=every), seed)
    gone: set[int] = set()
    before, price, liar = people.alive, people.unit_price, people.liar
    for t in range(1, 12):
        people.begin(t)
        now = people.alive
        assert len(now) == len(set(now.tolist())) == clients
        assert not gone & set(now.tolist())
        left = before != now
        wanted = 0 if t == 1 or (t - 1) % every else round(share * clients)
        assert left.sum() == wanted
        assert people.unit_price[~left].tolist() == price[~left].tolist()
        assert people.liar[~left].tolist() == liar[~left].tolist()
        gone |= set(before[left].tolist())
        assert people.total == clients + len(gone)
        before, price, liar = now, people.unit_price, people.liar


@settings(max_examples=200)
@given(data=st.data(), edges=st.integers(1, 40), seed=st.integers(0, 1000))
def test_every_client_sees_so_many_different_edges(
    data: st.DataObject, edges: int, seed: int
) -> None:
    visible = data.draw(st.integers(0, edges))
    people = Population(recipe(clients=30, edges=edges, visible=visible), seed)
    seen = people.pair_edge.reshape(30, visible or edges)
    assert people.pair_place.reshape(seen.shape).tolist() == [
        [i] * seen.shape[1] for i in range(30)
    ]
    assert seen.min() >= 0
    assert seen.max() < edges
    assert all(len(set(row)) == len(row) for row in seen.tolist())
