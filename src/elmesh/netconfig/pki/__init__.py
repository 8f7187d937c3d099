"""Private keys, certificate requests, the network's authority, and the verification of certificates.

An agent makes a private key, which never leaves its site, and a request with its name and its hosts. An authority signs
the request. The certificate is valid for both ends of a connection; it holds the name of the agent as its common name
and the hosts as subject alternative names. All certificates are X.509 v3; generated keys are on the curve P-256.
"""
