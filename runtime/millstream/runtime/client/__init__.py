"""A program outside the cluster that calls grains in it."""
