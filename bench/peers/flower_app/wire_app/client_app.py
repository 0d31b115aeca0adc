# flwr is installed in the peer's own environment only, so its types are unknown here.
# mypy: disable-error-code="import-not-found, untyped-decorator"
"""A client that adds one to every weight and sends the model back."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model that came, each weight one higher."""
    del context
    arrays = message.content["arrays"].to_numpy_ndarrays()
    changed = ArrayRecord([values + values.dtype.type(1) for values in arrays])
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": changed, "metrics": metrics}), reply_to=message)
