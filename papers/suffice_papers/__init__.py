"""The tables and figures of the papers, ours next to theirs.

`import suffice_papers` loads nothing: `tables` lists them, `request` says which of their cells are
finished, `atlas` holds our own.
"""
