"""Communication: what agents may ask for, the graph they talk along, and a folder per transport."""
