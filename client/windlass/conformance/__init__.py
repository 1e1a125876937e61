"""Tells whether a runner, in whatever language, keeps the contract of the sessions between coordinators and runners.

The kit plays two coordinators. The runner dials them, as it would dial real ones, and is driven through *stories*. Each
story shows that some rules are kept (rules.py); other rules are watched on every frame (watching.py). A rule of which
no case was seen counts as broken, because nothing is known of it.

Between two stories the kit ends the runner's instance, so that each story begins with an instance that holds nothing.

The kit stands on the generated contracts and gRPC alone. It shares no code with our coordinator and our runner, because
then both sides could be wrong in the same way.
"""
