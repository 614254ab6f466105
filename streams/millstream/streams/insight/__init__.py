"""The diagnosis of a stream that makes no progress.

Owns: the report of a stream, with its queue, agent and subscriptions (`report`); the verdict over
two reports (`verdict`, pure); and the functions that a program calls (`why`). Not: collecting the
reports (`provider/stream_reports`). Reading starts at `why.py`.
May import `contracts` and `runtime`.
"""
