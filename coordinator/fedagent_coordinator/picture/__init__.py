"""A run as people see it: one projection for status, the page, the report and Python.

`summary.summarize(reader, run)` is the run in one record, `RunSummary`, and `waiting_as` adds what
its coordinator waits for. `watcher.Watcher(folder, run=...).look()` is everything, `records.Field`:
that record, money, edges, devices, rounds, the newest timelines and alarms. With `whole=True` it
has every round of a run, for a report. It reads the books and two small files
(`status_files`) beside a running coordinator, and writes nothing.
"""
