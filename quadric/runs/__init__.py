"""The store of results: finished runs, read, grouped, paired and tabulated.

`reading` reads result.json and the analysis.json beside it, `groups` puts runs together that differ
in their seed alone and pairs such groups, `tables` writes them as text, markdown and plain data.
`metrics` says by what runs are judged. Training, analysis, the report and tools/ use these, and
nothing else reads results.
"""
