"""The definition language of workflows: how a definition is written, and what can be wrong with it.

Pure: no I/O, no clock, no gRPC. The api, the coordinator, the runner and the command line all use this one package.

| file | what is in it |
|---|---|
| `parsing.py`, `yaml_text.py` | JSON and YAML text → a document and the line of everything in it |
| `examination.py` | a document → all its faults, its canonical form, and the nodes that its templates read |
| `fields.py`, `config_schemas.py`, `schema_faults.py` | the schemas of fields and configs, and what does not fit |
| `graph.py`, `modules.py`, `compensation.py`, `state_keys.py`, `input_schemas.py` | its other parts |
| `template_texts.py`, `templates.py` | where templates stand, and which nodes they read |
| `expressions.py`, `words.py` | what the template parser must not get: long expressions, and calls |
| `verdict.py`, `risks.py` | what was found, and the warnings of what goes wrong later |
| `durations.py` | the one grammar of durations and the one of times |
| `targets.py` | the name of what a request over HTTP calls |
| `faults.py`, `limits.py`, `json_values.py` | what a fault says, the limits, the JSON that can be stored |

These modules import only the standard library. They import minijinja, jsonschema-rs, orjson and PyYAML when the first
definition needs them, so that commands and runners that read no definition start fast.
"""
