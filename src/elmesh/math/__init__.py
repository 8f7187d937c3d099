"""The mathematics: pure functions of arrays, without communication, files or processes."""
