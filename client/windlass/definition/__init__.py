"""The definition language of workflows: how a definition is written, and what can be wrong with it.

Pure: no I/O, no clock, no gRPC. The api, the coordinator, the runner and the command line all use this one package.

| file | what is in it |
|---|---|
| `parsing.py`, `yaml_text.py` | JSON and YAML text → a document and the line of everything in it |
| `examination.py` | a document → all its faults, its canonical form, and the nodes that its templates read |
| `fields.py`, `config_schemas.py`, `schema_faults.py` | the schemas of fields and configs, and what does not fit |
| `graph.py`, `modules.py`, `input_schemas.py` | the other parts of the examination |
| `templates.py`, `expressions.py` | which nodes a template reads, by the parser of the template language |
| `durations.py` | the one grammar of durations and the one of times |
| `faults.py`, `limits.py`, `json_values.py` | what a fault says, the limits, the JSON that can be stored |

These modules import only the standard library. They import minijinja, jsonschema-rs, orjson and PyYAML when the first
definition needs them, so that commands and runners that read no definition start fast.
"""
