"""The API as a page for people, from the OpenAPI document: no script, nothing from other hosts."""

from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dovetail: HTTP API</title>
<link rel="stylesheet" href="/docs/style.css">
</head>
<body>
"""

STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563c9; }
@media (prefers-color-scheme: dark) { :root { --accent: #7fb2ff; } }
body { font: 15px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; }
a { color: var(--accent); }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.5rem; font-size: 1.2rem; text-transform: capitalize; }
nav ul { columns: 3 14rem; padding-left: 1.2rem; }
section.operation { border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem;
  margin: 1rem 0; overflow-x: auto; }
section.operation h3 { margin: .2rem 0; font-size: 1rem; font-weight: 600; }
.method { display: inline-block; min-width: 4.2rem; font-weight: 700; color: var(--accent); }
table { border-collapse: collapse; table-layout: fixed; width: 100%; margin: .5rem 0; }
th { width: 12rem; overflow-wrap: anywhere; } td:nth-of-type(1) { width: 17rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-top: 1px solid var(--line); }
th { font-weight: 600; }
pre { background: var(--soft); padding: .6rem; border-radius: 6px; overflow-x: auto; }
@media (max-width: 45rem) { td, th { display: block; width: auto !important; border: 0;
  padding: .1rem 0; } }
"""


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    tags = list(dict.fromkeys(operation["tags"][0] for _, _, operation in operations))
    parts = [
        _HEAD,
        f"<h1>HTTP API <small>{escape(document['info']['version'])}</small></h1>",
        f"<p>{_inline(document['info']['description'])}</p>",
        '<p>For programs: <a href="/v1/openapi.json">/v1/openapi.json</a>. '
        'For people: <a href="/">the console</a>.</p>',
        "<nav><ul>",
        *(f'<li><a href="#{escape(tag)}">{escape(tag)}</a></li>' for tag in tags),
        '<li><a href="#types">types</a></li></ul></nav>',
        "<main>",
    ]
    for tag in tags:
        parts.append(f'<h2 id="{escape(tag)}">{escape(tag)}</h2>')
        parts += [_operation(*each) for each in operations if each[2]["tags"][0] == tag]
    parts.append('<h2 id="types">types</h2>')
    schemas = document["components"]["schemas"]
    parts += [_type(name, schemas[name]) for name in sorted(schemas)]
    parts.append("</main></body></html>\n")
    return "\n".join(parts)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody")
    rows = [_parameter_row(parameter) for parameter in operation["parameters"]]
    if body is not None:
        rows.append(_row("body", _kind(body["content"]["application/json"]["schema"]), ""))
    for status, answer in operation["responses"].items():
        if int(status) < 400:
            content = next(iter(answer.get("content", {"": {"schema": {}}}).values()))
            rows.append(_row(status, _kind(content["schema"]), escape(answer["description"])))
    return (
        '<section class="operation">'
        f'<h3><span class="method">{escape(method.upper())}</span> '
        f"<code>{escape(path)}</code></h3>"
        f"<p><b>{escape(operation['summary'])}.</b> {_inline(operation['description'])}</p>"
        f"<table>{''.join(rows)}</table></section>"
    )


def _parameter_row(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    default = f" Default: {_plain(schema['default'])}." if "default" in schema else ""
    text = _inline(parameter.get("description", "") + default)
    return _row(f"{parameter['name']}", _kind(schema), text)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(name: str, schema: dict[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        _row(
            field + ("" if field in needed else " (optional)"),
            _kind(kind),
            escape(kind.get("description", "")),
        )
        for field, kind in schema.get("properties", {}).items()
    ]
    text = _inline(schema.get("description", ""))
    return (
        f'<section class="operation" id="type-{escape(name)}"><h3><code>{escape(name)}</code></h3>'
        f"<p>{text}</p><table>{''.join(rows)}</table></section>"
    )


def _row(name: str, kind: str, text: str) -> str:
    return f"<tr><th><code>{escape(name)}</code></th><td>{kind}</td><td>{text}</td></tr>"


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to other types."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return escape(" or ".join(str(value) for value in schema["enum"]))
    kind = schema.get("type", "anything" if schema else "")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"names with {_kind(schema['additionalProperties'])}"
    bounds = [
        words.format(schema[key])
        for key, words in (
            ("minimum", "from {}"),
            ("maximum", "to {}"),
            ("maxLength", "of at most {} characters"),
        )
        if key in schema
    ]
    return escape(" ".join([str(kind), *bounds]))


def _inline(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(" ".join(text.split())).split("`")
    return "".join(
        f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts)
    )
