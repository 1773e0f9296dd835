//! The API's description: the paths of `openapi.json`, what each part adds, and schemas from the types.

use super::api;
use crate::parts::settings::SettingView;
use crate::parts::{Action, AnyPart, PARTS};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The whole description.
pub fn document() -> Value {
    let mut document: Value = serde_json::from_str(include_str!("openapi.json")).expect("tested");
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.definitions_path = "/components/schemas".into();
        s.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let paths = object(&mut document["paths"]);
    for part in PARTS.iter().copied() {
        let path = format!("/v1/pools/{{name}}/{}", part.name());
        paths.insert(path.clone(), json!({ "get": shows(part, &mut generator) }));
        for action in part.actions() {
            let acts = acts(part, action, &mut generator);
            paths.insert(format!("{path}/{}", action.name), json!({ "post": acts }));
        }
    }
    generator.subschema_for::<SettingView>();
    generator.subschema_for::<api::Health>();
    generator.subschema_for::<api::Status>();
    generator.subschema_for::<api::Connections>();
    generator.subschema_for::<api::Disconnected>();
    generator.subschema_for::<api::EventsStatus>();
    generator.subschema_for::<api::ConfigStatus>();
    generator.subschema_for::<api::Reloaded>();
    generator.subschema_for::<api::Draining>();
    generator.subschema_for::<api::PoolRemoved>();
    generator.subschema_for::<api::PoolReleased>();
    generator.subschema_for::<api::PoolTaken>();
    generator.subschema_for::<api::PoolImage>();
    generator.subschema_for::<api::History>();
    generator.subschema_for::<api::NewVolume>();
    generator.subschema_for::<api::VolumeChange>();
    generator.subschema_for::<api::InjectSpec>();
    generator.subschema_for::<api::InjectStatus>();
    generator.subschema_for::<api::TenantSpec>();
    generator.subschema_for::<api::TenantChange>();
    generator.subschema_for::<api::Trace>();
    generator.subschema_for::<api::ErrorBody>();
    let schemas = object(&mut document["components"]["schemas"]);
    schemas.extend(generator.take_definitions(true));
    document
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    value.as_object_mut().expect("it is an object in openapi.json")
}

fn pool_name() -> Value {
    json!([{
        "name": "name", "in": "path", "required": true, "description": "The pool's name.", "schema": { "type": "string" },
    }])
}

fn error(description: &str) -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    json!({ "description": description, "content": { "application/json": { "schema": schema } } })
}

/// `cache`, `give-up` → `cacheGiveUp`.
fn id(words: &[&str]) -> String {
    let words = words.iter().flat_map(|w| w.split('-')).enumerate();
    let capital = |(n, word): (usize, &str)| match word.chars().next() {
        Some(first) if n > 0 => format!("{}{}", first.to_ascii_uppercase(), &word[first.len_utf8()..]),
        _ => word.to_string(),
    };
    words.map(capital).collect()
}

fn shows(part: &dyn AnyPart, generator: &mut SchemaGenerator) -> Value {
    json!({
        "operationId": id(&["show", part.name()]),
        "summary": part.summary(),
        "parameters": pool_name(),
        "responses": {
            "200": {
                "description": part.summary(),
                "content": { "application/json": { "schema": part.schema(generator) } },
            },
            "401": error("Takes the token."),
            "404": error("There is no such pool, or it has no such layer."),
            "503": error("The pool doesn't answer."),
        },
    })
}

fn acts(part: &dyn AnyPart, action: &Action, generator: &mut SchemaGenerator) -> Value {
    let mut acts = json!({
        "operationId": id(&[part.name(), action.name]),
        "summary": action.summary,
        "parameters": pool_name(),
        "responses": {
            "202": { "description": "Begun." },
            "400": error("The pool has no such layer, or the body isn't what is expected."),
            "401": error("Takes the token."),
            "404": error("There is no such thing."),
            "409": error("The layer's state doesn't allow it."),
            "503": error("Something below failed."),
        },
        "security": [{ "token": [] }, {}],
    });
    if let Some(body) = action.body {
        let schema = body(generator);
        acts["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        acts["responses"]["415"] = error("The body isn't application/json.");
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_is_described() {
        let document = document();
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert!(
            schemas.contains_key("CachedVolume") && document["paths"]["/v1/pools/{name}/cache/give-up"].is_object()
        );
    }

    #[test]
    fn ids_are_words() {
        assert_eq!(id(&["cache", "give-up"]), "cacheGiveUp");
    }
}
