"""What tests share: problems, peers, workers and networks to try things on."""
