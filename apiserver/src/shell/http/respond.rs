//! Answers in the form a client wants.

use axum::body::Body as HttpBody;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::exchange::Exchange;
use super::output::{self, Shape};
use crate::core::error::ApiError;
use crate::core::kind::Column;
use crate::core::object::Object;
use crate::core::store::{Body, WriteResponse};
use crate::core::table::{self, IncludeObject};

/// A refusal as a `Status`.
pub(super) fn refusal(error: &ApiError) -> Response {
    let code = StatusCode::from_u16(error.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    output::json(code, &error.to_status())
}

/// The answer to a write.
pub(super) fn reply(exchange: &Exchange, reply: &WriteResponse) -> Result<Response, ApiError> {
    let value = match &reply.body {
        Body::Status(status) => status.clone(),
        Body::Object(object) => exchange.shaped(object)?,
        Body::List(objects) => {
            let items: Vec<&Object> = objects.iter().map(AsRef::as_ref).collect();
            let revision = items
                .iter()
                .map(|object| object.revision)
                .max()
                .unwrap_or(0);
            exchange.shaped_list(&items, &json!({"resourceVersion": revision.to_string()}))?
        }
    };
    let code = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::OK);
    let mut response = exchange.encode(code, &value)?;
    for warning in &reply.warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

impl Exchange {
    /// Columns of the version asked for.
    pub(super) fn columns(&self) -> &[Column] {
        let version = self.form.stored.version(&self.form.version);
        let version = version.unwrap_or_else(|| self.form.stored.storage_version());
        &version.columns
    }

    /// How much of each object a table row carries.
    pub(super) fn include_object(&self) -> Result<IncludeObject, ApiError> {
        let text = self.query.get("includeObject");
        let bad = || {
            ApiError::bad_request(format!(
                "invalid includeObject {:?}",
                text.unwrap_or_default()
            ))
        };
        IncludeObject::parse(text).ok_or_else(bad)
    }

    /// One object in the wanted shape.
    pub(super) fn shaped(&self, object: &Object) -> Result<Value, ApiError> {
        let value = self.form.encode(&object.value);
        Ok(match self.output.shape {
            Shape::Object => value.into_owned(),
            Shape::Metadata => table::partial(&value),
            Shape::Table => {
                let metadata = json!({"resourceVersion": object.revision.to_string()});
                self.table(&[object], &metadata)?
            }
        })
    }

    /// A list in the wanted shape.
    pub(super) fn shaped_list(
        &self,
        objects: &[&Object],
        metadata: &Value,
    ) -> Result<Value, ApiError> {
        let encoded = objects.iter().map(|object| self.form.encode(&object.value));
        Ok(match self.output.shape {
            Shape::Table => self.table(objects, metadata)?,
            Shape::Object => json!({
                "kind": self.form.asked.list_kind,
                "apiVersion": self.form.api_version(),
                "metadata": metadata,
                "items": encoded.map(std::borrow::Cow::into_owned).collect::<Value>(),
            }),
            Shape::Metadata => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": encoded.map(|value| table::partial(&value)).collect::<Value>(),
            }),
        })
    }

    fn table(&self, objects: &[&Object], metadata: &Value) -> Result<Value, ApiError> {
        let (columns, include, now) = (self.columns(), self.include_object()?, crate::shell::now());
        let rows = objects.iter().map(|object| {
            // Cells are computed from the stored form, which the built-in rules speak of.
            let mut row = table::row(columns, &object.value, include, now);
            if include == IncludeObject::Object {
                row["object"] = self.form.encode(&object.value).into_owned();
            }
            row
        });
        Ok(json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": table::definitions(columns),
            "rows": rows.collect::<Value>(),
        }))
    }

    /// A value as JSON or YAML.
    pub(super) fn encode(&self, code: StatusCode, value: &Value) -> Result<Response, ApiError> {
        if !self.output.yaml {
            return Ok(output::json(code, value));
        }
        let text = serde_saphyr::to_string(value).map_err(|error| {
            ApiError::new(crate::core::error::Reason::InternalError, error.to_string())
        })?;
        let body = HttpBody::from(text);
        Ok((code, [(header::CONTENT_TYPE, "application/yaml")], body).into_response())
    }
}
