"""Answer many requests with one language model, over HTTP as OpenAI's clients speak it.

`import suffice_serve` loads nothing: `engine` writes texts, `job` describes them, `app` and
`server` answer over HTTP.
"""
