"""The atlas: every legal mechanism on every task, trained, judged and shown on one page."""
