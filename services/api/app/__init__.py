"""What api does with a request that is well formed and allowed: load, decide, commit, answer.

Nothing here knows SQL, streams or servicers; what it needs of them is declared in `ports.py`.
"""
