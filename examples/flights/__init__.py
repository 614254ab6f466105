"""The main job: a year of flights through a cluster, checked figure by figure."""
