"""The parts of the bench, one module each; `bench.run` has the table of them."""
