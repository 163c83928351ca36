"""Tests; a package so that the oracle and the generator can be shared."""
