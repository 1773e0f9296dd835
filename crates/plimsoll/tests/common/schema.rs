//! As much of JSON Schema as `openapi.json` uses.

use serde_json::Value;

/// Panics unless `value` is what `schema` of `document` says.
pub fn check(document: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        let schema = &document["components"]["schemas"][name];
        assert!(schema.is_object(), "there is no schema {name}");
        return check(document, schema, value, place);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let fitting = choices.iter().find(|c| (c["type"] == "null") == value.is_null());
        return check(document, fitting.unwrap_or_else(|| panic!("{place}: {value} isn't any of these")), value, place);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(all) => all.iter().map(|k| k.as_str().unwrap()).collect(),
        other => panic!("{place}: the schema has type {other}"),
    };
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_u64() && kinds.contains(&"integer") => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    assert!(kinds.contains(&kind), "{place}: {value} isn't {kinds:?}");
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{place}: {value} isn't one of {words:?}");
    }
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let of_tuple = schema["prefixItems"].get(i);
        check(document, of_tuple.unwrap_or(&schema["items"]), item, &format!("{place}[{i}]"));
    }
    if let (Some(fields), Some(known)) = (value.as_object(), schema["properties"].as_object()) {
        for required in schema["required"].as_array().into_iter().flatten() {
            assert!(fields.contains_key(required.as_str().unwrap()), "{place}: {required} is missing");
        }
        for (name, field) in fields {
            let schema = known.get(name).unwrap_or_else(|| panic!("{place}: {name} isn't described"));
            check(document, schema, field, &format!("{place}.{name}"));
        }
    }
}
