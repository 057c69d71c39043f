"""The graph: steps, engine, selection, archive, payloads, plan."""
