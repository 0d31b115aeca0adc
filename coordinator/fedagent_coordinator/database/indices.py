"""Run-wide indices of agents and edges: given once, kept, never used twice."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .connection import Database


class RunIndices:
    """The indices of one run; new ids are written before their index is used."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._db = database
        self._run_id = run_id
        sql = database.connection
        rows = sql.execute(
            "SELECT agent_id, idx, label FROM clients WHERE run_id = ?", (run_id,)
        ).fetchall()
        self._clients: dict[str, int] = {row[0]: row[1] for row in rows}
        self._labels: dict[str, str] = {row[0]: row[2] for row in rows}
        self._edges: dict[str, int] = dict(
            sql.execute("SELECT edge_id, idx FROM edges WHERE run_id = ?", (run_id,)).fetchall()
        )

    def clients(self, ids: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return int32[len(ids)], the index of each agent."""
        fresh = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._clients]
        if fresh:
            numbered = {id_: len(self._clients) + i for i, id_ in enumerate(fresh)}
            with self._db.transaction("index") as sql:
                sql.executemany(
                    "INSERT INTO clients (run_id, idx, agent_id) VALUES (?, ?, ?)",
                    [(self._run_id, index, id_) for id_, index in numbered.items()],
                )
            self._clients.update(numbered)
        return np.array([self._clients[id_] for id_ in ids], dtype=np.int32)

    def edge(self, edge: str) -> int:
        """Return the index of an edge."""
        if edge not in self._edges:
            index = len(self._edges)
            with self._db.transaction("index") as sql:
                sql.execute(
                    "INSERT INTO edges (run_id, idx, edge_id) VALUES (?, ?, ?)",
                    (self._run_id, index, edge),
                )
            self._edges[edge] = index
        return self._edges[edge]

    def sizes(self) -> tuple[int, int]:
        """Return how many clients and how many edges have an index."""
        return len(self._clients), len(self._edges)

    def label_edge(self, edge: str, label: str) -> None:
        """Remember what people call an edge."""
        self.edge(edge)
        with self._db.transaction("label") as sql:
            sql.execute(
                "UPDATE edges SET label = ? WHERE run_id = ? AND edge_id = ?",
                (label, self._run_id, edge),
            )

    def label_clients(self, labels: Mapping[str, str]) -> None:
        """Remember what people call clients; what is known costs nothing."""
        changed = {id_: label for id_, label in labels.items() if self._labels.get(id_) != label}
        if not changed:
            return
        self.clients(list(changed))
        with self._db.transaction("label") as sql:
            sql.executemany(
                "UPDATE clients SET label = ? WHERE run_id = ? AND agent_id = ?",
                [(label, self._run_id, id_) for id_, label in changed.items()],
            )
        self._labels.update(changed)
