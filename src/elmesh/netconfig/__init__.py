"""The configuration of a network of organisations: its participants, its model and the identity of each agent.

``network.toml`` (:mod:`elmesh.netconfig.config`) is public and identical at every agent. ``agent.toml``
(:mod:`elmesh.netconfig.identity`) belongs to one agent and names its private key and its certificate, which an
authority (:mod:`elmesh.netconfig.pki`) has signed. Nothing in this package opens a connection. It needs the packages of
``pip install "elmesh[network]"``.
"""
