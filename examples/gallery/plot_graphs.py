"""
Which graph should connect the sites?
=====================================

Sites send messages along the edges of a graph: a ring, a star with a hub, a grid, a path. Does the choice change the
model, and what does it cost?
"""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

from elmesh import MeshELM, MultiTaskELMRegressor
from elmesh.datasets import simulate_clinics

d = simulate_clinics(seed=0)
graphs = ("path", "ring", "grid", "star")
models = {
    graph: MultiTaskELMRegressor(solver=MeshELM(graph=graph, rank=0), random_state=0).fit(
        d.X_train, d.y_train, tasks=d.tasks_train
    )
    for graph in graphs
}

# %%
# The model is the same to the last bit, because sites add up whole numbers, whose sum does not depend on the order.

first = models["path"].predict(d.X_test, tasks=d.tasks_test)
print([np.array_equal(first, model.predict(d.X_test, tasks=d.tasks_test)) for model in models.values()])

# %%
# What differs is the number of exchanges, one after the other: a message must pass the whole graph and return. In a
# star that takes two steps, but all messages meet at the hub, and its line has to carry them. Of a ring one edge is not
# used: sums go along a spanning tree. The size of a point is what the site receives.

figure, axes = plt.subplots(1, 4, figsize=(9, 2.9), layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    traffic = model.traffic_
    busiest = traffic.groupby("receiver")["bytes"].sum().max() / 1e6
    graph = nx.Graph()
    graph.add_edges_from(traffic[["sender", "receiver"]].to_numpy())
    layout = nx.circular_layout(sorted(graph)) if name == "ring" else nx.kamada_kawai_layout(graph)
    sizes = [2e-5 * traffic.loc[traffic["receiver"] == site, "bytes"].sum() for site in graph]
    nx.draw_networkx(graph, layout, ax=ax, node_size=sizes, with_labels=False, edge_color="0.6", node_color="C0")
    ax.set_title(f"{name}\n{model.n_exchanges_:,} exchanges\nbusiest site {busiest:.1f} MB")
    ax.axis("off")
    ax.margins(0.2)
plt.show()
