"""The definition language of workflows: how a definition is written, and what can be wrong with it.

Pure: no I/O, no clock, no gRPC. The api, the coordinator, the runner and the command line all use this one package.

| file | what is in it |
|---|---|
| `parsing.py` | JSON and YAML text → a document and the line of everything in it |
| `examination.py` | a document → every fault at once, its canonical form, and what its templates read |
| `fields.py`, `graph.py`, `modules.py`, `config_schemas.py`, `input_schemas.py` | the parts of the examination |
| `templates.py`, `expressions.py` | which nodes a template reads, told by the parser of the template language |
| `durations.py` | the one grammar of durations and the one of times |
| `faults.py`, `limits.py`, `json_values.py` | how a fault is named, what is too much, what can be kept |

Importing any of them costs the standard library alone: minijinja, jsonschema-rs, orjson and PyYAML are imported when
the first definition needs them, so that a command or a runner that reads none stays fast.
"""
